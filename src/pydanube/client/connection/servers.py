"""Where brokers listen: ``danube://host:port,host:port``, or the same without the scheme; ``danubes://`` with TLS.

Every broker of the list can tell where the others are; several are listed in case one is down. ``http://host:port``
lists HTTP listeners instead, which tell where the native ones are (`discovery`), and ``https://`` those with TLS.
Brokers tell addresses without a scheme: a client that begins with TLS uses it for every broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from pydanube.model.addresses import host_port, split_host_port
from pydanube.model.errors import Invalid

SCHEME: Final = "danube"
DEFAULT_PORT: Final = 6655
TLS_SCHEME: Final = "danubes"
HTTP_SCHEME: Final = "http"
HTTPS_SCHEME: Final = "https"
DEFAULT_HTTP_PORT: Final = 8650
_EXAMPLE: Final = "write it as danube://host:port, for example danube://127.0.0.1:6655, or http://host:8650"
_CREDENTIALS: Final = "; credentials are given beside it, as token, api_key or token_file, or as DANUBE_TOKEN"


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """Host and port of one listener of a broker, mostly of the native one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Self:
        """Parse ``host``, ``host:port``, ``[ipv6]`` or ``[ipv6]:port``."""
        if text.count(":") > 1 and not text.startswith("["):
            raise Invalid(
                f"broker address {text!r} looks like IPv6: put the host in brackets, as in [::1]:{DEFAULT_PORT}"
            )
        host, port_text = split_host_port(text)
        if not host or any(character in host for character in " /?#@,"):
            raise Invalid(f"broker address {text!r} has no usable host: {_EXAMPLE}")
        if port_text is None:
            return cls(host, default_port)
        if not (port_text.isascii() and port_text.isdecimal() and 0 < int(port_text) < 65_536):
            raise Invalid(f"broker address {text!r} has no usable port: {_EXAMPLE}")
        return cls(host, int(port_text))

    def __str__(self) -> str:
        return host_port(self.host, self.port)


class Servers(NamedTuple):
    """What a URL lists, in its order and without duplicates: native listeners of brokers, or HTTP listeners."""

    native: list[BrokerAddress]
    http: list[BrokerAddress]
    is_encrypted: bool = False

    def __str__(self) -> str:
        native, http = (TLS_SCHEME, HTTPS_SCHEME) if self.is_encrypted else (SCHEME, HTTP_SCHEME)
        scheme, addresses = (native, self.native) if self.native else (http, self.http)
        return f"{scheme}://" + ",".join(str(one) for one in addresses)


def parse_servers(url: str) -> Servers:
    """Parse ``danube://host:port,host:port``, the same without a scheme, or ``http://host:port,host:port``; with TLS
    ``danubes://`` or ``https://``."""
    if not isinstance(url, str):
        raise Invalid(f"broker URL {url!r} is not text: {_EXAMPLE}")
    if any(character in url for character in "@?#"):  # not repeated in the message: it may hold a password
        raise Invalid(f"a broker URL holds no user, no password and no token: {_EXAMPLE}{_CREDENTIALS}")
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        rest = scheme
    elif scheme.lower() not in (SCHEME, TLS_SCHEME, HTTP_SCHEME, HTTPS_SCHEME):
        raise Invalid(f"broker URL {url!r} has the scheme {scheme!r}: {_EXAMPLE}")
    scheme = scheme.lower() if separator else SCHEME
    is_http = scheme in (HTTP_SCHEME, HTTPS_SCHEME)
    port = DEFAULT_HTTP_PORT if is_http else DEFAULT_PORT
    parts = [part.strip().removeprefix(f"{scheme}://" if is_http else "") for part in rest.split(",")]
    addresses = list(dict.fromkeys(BrokerAddress.parse(part.removesuffix("/"), port) for part in parts))
    is_encrypted = scheme in (TLS_SCHEME, HTTPS_SCHEME)
    return Servers([], addresses, is_encrypted) if is_http else Servers(addresses, [], is_encrypted)
