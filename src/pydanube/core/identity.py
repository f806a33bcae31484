"""Authentication: what a caller shows, and who it is then.

A listener collects the credentials of a connection or request, and the authenticator makes an identity of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from pydanube.model.errors import Unauthenticated

from .access import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate that a client has proven to hold. The listener has checked its signature and its dates."""

    subject: str
    """The distinguished name as RFC 4514 writes it, for example `CN=loader,O=Example`."""
    names: tuple[str, ...] = ()
    """The alternative names, each with its kind: `DNS:loader.example`, `URI:spiffe://example/loader`."""
    expires_at_us: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows. Secrets never appear in its representation."""

    token: str = field(default="", repr=False)
    """An API key or a JWT; empty: neither was sent."""
    certificate: PeerCertificate | None = None


NO_CREDENTIALS: Final = Credentials()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is, how that was established, and how long it is believed."""

    principal: Principal
    method: str = "none"
    """`api-key`, `jwt`, `certificate`, `cluster-token`, or `none`."""
    expires_at_us: int = 0
    """When the credentials end, in microseconds since 1970; 0: never."""
    key_id: str = ""
    """The API key that was shown: the identity ends when that is revoked."""


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of every caller of a broker without authentication."""


class Authenticator(Protocol):
    """Finds out who a caller is."""

    @property
    def is_required(self) -> bool:
        """Whether callers must show credentials."""
        ...

    async def authenticate(self, credentials: Credentials, address: str) -> Identity:
        """Return who the caller at this IP address is. Raises Unauthenticated, in the same words whether a name exists
        or not, and Full to an address that failed too often. Cancelled: nothing is left behind."""
        ...

    async def refuse(self, address: str, reason: str) -> None:
        """Count a failure of this IP address with credentials that a listener checks itself, such as the signature of a
        webhook, and raise as `authenticate` does. `reason` is for the log only. Does nothing if no credentials are
        needed. Cancelled: the failure is counted."""
        ...

    async def run(self) -> None:
        """Do what authentication needs in the background, until cancelled or done."""
        ...


class NoAuthentication:
    """Believes that every caller is anonymous."""

    @property
    def is_required(self) -> bool:
        return False

    async def authenticate(self, credentials: Credentials, address: str) -> Identity:
        if credentials.token:
            raise Unauthenticated("this broker has no authentication: connect without credentials")
        return NOBODY

    async def refuse(self, address: str, reason: str) -> None:
        """Do nothing: the listener answers as it likes."""

    async def run(self) -> None:
        """Do nothing."""
