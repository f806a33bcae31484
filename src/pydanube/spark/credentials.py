"""Who the data source is to the brokers, on the driver and in every task.

The options `token` (also an API key) and `tokenFile` say it, or else the environment of the driver, whose token travels
with the tasks: executors need no variable of their own. A token file is read where it is needed, on every machine, so
that a stream outlives its token.

Invariants
    a token appears in no representation, plan, log line or error
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydanube.client.arguments import ConnectArguments
from pydanube.client.connection.credentials import (
    API_KEY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    ClientCredentials,
    check_token,
)
from pydanube.model.errors import Invalid
from pydanube.runtime.tls import ClientTls

CREDENTIALS: Final = ("token", "tokenFile")
"""The options. Spark hides the values of options whose names contain "token" (spark.redaction.regex), in plans and on
its web pages."""

SHOWN: Final = "apikey"
"""An option that users may try. Spark would show its value in plans."""
SHOWN_REFUSAL: Final = (
    "option 'apiKey' is refused, because Spark shows its value in plans: give the API key as the option token, whose "
    "value Spark hides, or as tokenFile, and replace the key if plans were shown to others"
)


@dataclass(frozen=True, slots=True)
class BrokerCredentials:
    """A token, or the file that holds it; neither: the client has none, or that of its process. Picklable.

    `tls`: which certificates count, and which one is shown; None: what the environment says, on the driver and on each
    executor.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls: ClientTls | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], tls: ClientTls | None = None) -> BrokerCredentials:
        """Return the credentials of options by their documented names, or else of this process. Raises Invalid."""
        return replace(cls._parse(options), tls=tls)

    @classmethod
    def _parse(cls, options: Mapping[str, str]) -> BrokerCredentials:
        given = [name for name in CREDENTIALS if name in options]
        if len(given) > 1:
            raise Invalid(f"options {' and '.join(given)} say the same thing twice: give one of them")
        if not given:
            return cls._of_environment()
        (name,) = given
        if name == "tokenFile":
            if not options[name].strip():
                raise Invalid("option tokenFile is empty: name a file that every machine has")
            return cls(token_file=options[name])
        try:
            return cls(check_token(options[name]))
        except Invalid as error:
            raise Invalid(f"option token: {error.message}") from None

    @classmethod
    def _of_environment(cls) -> BrokerCredentials:
        ClientCredentials.of_environment(os.environ)  # raises if it contradicts itself
        token = os.environ.get(TOKEN_VARIABLE) or os.environ.get(API_KEY_VARIABLE) or ""
        return cls(token.strip(), os.environ.get(TOKEN_FILE_VARIABLE, ""))

    def arguments(self) -> ConnectArguments:
        """Return them as `pydanube.connect` takes them."""
        arguments: ConnectArguments = {}
        if self.token:
            arguments["token"] = self.token
        elif self.token_file:
            arguments["token_file"] = self.token_file
        if self.tls is not None:
            arguments["tls_ca_file"] = self.tls.ca_file
            arguments["tls_cert_file"] = self.tls.cert_file
            arguments["tls_key_file"] = self.tls.key_file
            arguments["tls_insecure_skip_verify"] = self.tls.insecure_skip_verify
        return arguments

    def as_options(self) -> dict[str, str]:
        """Return them as options of the data source."""
        if self.token:
            return {"token": self.token}
        return {"tokenFile": self.token_file} if self.token_file else {}


NO_CREDENTIALS: Final = BrokerCredentials()
