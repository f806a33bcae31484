"""What a client shows to prove who it is: a token, a file that holds one, or a function that supplies one.

The token is an API key or a JWT; the broker tells them apart. It is asked for anew for every connection, and again
before the broker stops believing the last one, so that a connection outlives its token. A program that gives none uses
the one of the environment: DANUBE_TOKEN, DANUBE_API_KEY or DANUBE_TOKEN_FILE.

Invariants
    a token appears in no representation, log line or error
    a client without credentials sends none
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.limits import TOKEN_BYTES_MAX
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

if TYPE_CHECKING:
    from .connection import Connection

log = get_logger(__name__)

T = TypeVar("T")

TokenSupplier = Callable[[], "str | Awaitable[str]"]
"""Returns the token to show now, or something to await for it. It must not block the event loop."""

AnyToken = str | Path | TokenSupplier
"""A token, the file that holds it, or a function that returns it."""

TOKEN_VARIABLE: Final = "DANUBE_TOKEN"  # noqa: S105  the name of a variable
API_KEY_VARIABLE: Final = "DANUBE_API_KEY"
TOKEN_FILE_VARIABLE: Final = "DANUBE_TOKEN_FILE"  # noqa: S105
VARIABLES: Final = (TOKEN_VARIABLE, API_KEY_VARIABLE, TOKEN_FILE_VARIABLE)

RENEW_AFTER: Final = 0.8
"""The part of its time after which a token is replaced."""

RENEW_SECONDS_MIN: Final = 0.5
"""The shortest wait before a token is replaced, also after a failure."""


class ClientCredentials:
    """The credentials of one client."""

    def __init__(self, token: AnyToken | None = None) -> None:
        """`token` None: the client has no credentials."""
        if token is not None and not isinstance(token, str | Path) and not callable(token):
            raise Invalid("token is neither text, nor a Path, nor a function that returns it")
        self._token: str | TokenSupplier | None = TokenFile(token) if isinstance(token, Path) else token
        if isinstance(token, str):
            self._token = check_token(token)

    @classmethod
    def choose(
        cls,
        token: AnyToken | None = None,
        api_key: AnyToken | None = None,
        token_file: str | os.PathLike[str] | None = None,
    ) -> ClientCredentials:
        """Return the credentials of the arguments of `connect`, or else of the environment. Raises Invalid."""
        file = None if token_file is None else Path(token_file)
        given = {"token": token, "api_key": api_key, "token_file": file}
        name, chosen = _only_one({name: value for name, value in given.items() if value is not None}, "given")
        if chosen is None:
            return cls.of_environment(os.environ)
        try:
            return cls(chosen)
        except Invalid as error:
            raise Invalid(error.message.replace("token", name, 1)) from None

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> ClientCredentials:
        """Return the credentials that the environment names. An empty variable counts as unset. Raises Invalid."""
        name, text = _only_one({one: environ[one] for one in VARIABLES if environ.get(one)}, "set")
        if text is None:
            return NO_CREDENTIALS
        try:
            return cls(Path(text) if name == TOKEN_FILE_VARIABLE else text)
        except Invalid as error:
            raise Invalid(f"the environment variable {name} is wrong: {error.message}") from None

    @property
    def can_change(self) -> bool:
        """Whether another token may be supplied later."""
        return callable(self._token)

    async def token(self) -> str:
        """Return the token to show now; empty: there is none.

        Raises Invalid for text that is no token, and Unavailable if the supplier fails, so that it is tried again.
        """
        if self._token is None or isinstance(self._token, str):
            return self._token or ""
        try:
            supplied = self._token()
            text = await supplied if inspect.isawaitable(supplied) else supplied
        except DanubeError:
            raise
        except Exception as error:  # its message may repeat what it has read
            raise Unavailable(f"the function that supplies the token failed: {type(error).__name__}") from None
        return check_token(text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'none' if self._token is None else '***'}>"


NO_CREDENTIALS: Final = ClientCredentials()


class TokenFile:
    """A file that holds a token and nothing else. It is read whenever the token is asked for, so that a file which was
    replaced is used for the next connection, and before the broker stops believing the last token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_read = False

    async def __call__(self) -> str:
        """Return the token. Raises Invalid if the file was wrong from the beginning, and Unavailable if it cannot be
        read now, so that it is tried again: it may be about to be replaced."""
        try:
            token = await asyncio.to_thread(self._read)
        except Invalid as error:
            raise (Unavailable(error.message) if self._was_read else error) from None
        self._was_read = True
        return token

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                content = file.read(TOKEN_BYTES_MAX + 16)  # a line end, and what shows that it is too long
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise Invalid(f"the token file {self._path} cannot be read: {reason}") from None
        try:
            return check_token(content.decode(errors="replace"))
        except Invalid as error:
            raise Invalid(f"the token file {self._path} is wrong: {error.message}") from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"


def _only_one(given: Mapping[str, T], how: str) -> tuple[str, T | None]:
    """Return the one entry; a None if there is none. Raises Invalid, without the values, if there are several."""
    if len(given) > 1:
        raise Invalid(f"{' and '.join(given)} are {how}, and each of them is a token: choose one of them")
    return next(iter(given.items()), ("", None))


def check_token(text: object) -> str:
    """Return the token without white space around it; raise Invalid, without the text, if it is none."""
    token = text.strip() if isinstance(text, str) else ""
    if not token or len(token) > TOKEN_BYTES_MAX or not (token.isascii() and token.isprintable() and " " not in token):
        raise Invalid(f"the token is empty, longer than {TOKEN_BYTES_MAX} bytes, or has characters that no token has")
    return token


async def keep_authenticated(connection: Connection, credentials: ClientCredentials, clock: Clock) -> None:
    """Show a newer token whenever the broker is about to stop believing the last one. To be cancelled when the
    connection ends."""
    left_ms = connection.welcome.credentials_ms
    while left_ms > 0:
        await clock.sleep(max(RENEW_SECONDS_MIN, left_ms / 1_000 * RENEW_AFTER))
        try:
            token = await credentials.token()
            answer = await connection.request(
                requests.Authenticate(auth_scheme=requests.BEARER, auth_data=token.encode()), requests.Authenticated
            )
            left_ms = answer.credentials_ms
        except DanubeError as error:
            log.warning("broker.reauthentication_failed", address=str(connection.address), error=error.message)
            left_ms = max(1, int(left_ms * (1 - RENEW_AFTER)))
