"""Where the broker is and how it is known, for programs and commands that do not say: variables of the environment."""

from __future__ import annotations

import os
from os import PathLike
from typing import TYPE_CHECKING, Final

from pydanube.model.text import Flag, read

if TYPE_CHECKING:
    from .tls import ClientTls

URL_VARIABLE: Final = "DANUBE_URL"
PROFILE_VARIABLE: Final = "DANUBE_PROFILE"
DEFAULT_URL: Final = "danube://127.0.0.1:6655"

CA_FILE_VARIABLE: Final = "DANUBE_TLS_CA_FILE"
CERT_FILE_VARIABLE: Final = "DANUBE_TLS_CLIENT_CERT_FILE"
KEY_FILE_VARIABLE: Final = "DANUBE_TLS_CLIENT_KEY_FILE"
SKIP_VERIFY_VARIABLE: Final = "DANUBE_TLS_INSECURE_SKIP_VERIFY"
"""Not DANUBE_TLS_CERT_FILE and ..._KEY_FILE: these are the broker's own certificate."""


def broker_url() -> str:
    """Return the broker URL of the environment, or the default one. An empty variable counts as unset."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def client_tls(
    ca_file: str | PathLike[str] | None = None,
    cert_file: str | PathLike[str] | None = None,
    key_file: str | PathLike[str] | None = None,
    insecure_skip_verify: bool | None = None,
) -> ClientTls:
    """Return how a client checks brokers and what it shows them; what is None comes from the environment. A
    certificate that is given here does not get the key of the environment. Raises Invalid."""
    from .tls import ClientTls  # imports OpenSSL: only where a client is made

    if cert_file is None and key_file is None:
        cert_file, key_file = os.environ.get(CERT_FILE_VARIABLE), os.environ.get(KEY_FILE_VARIABLE)
    if ca_file is None:
        ca_file = os.environ.get(CA_FILE_VARIABLE)
    if insecure_skip_verify is None:
        given = os.environ.get(SKIP_VERIFY_VARIABLE) or "false"
        insecure_skip_verify = read(Flag(), given, f"the environment variable {SKIP_VERIFY_VARIABLE}")
    return ClientTls(_text(ca_file), _text(cert_file), _text(key_file), insecure_skip_verify)


def _text(path: str | PathLike[str] | None) -> str:
    return "" if path is None else os.fspath(path)
