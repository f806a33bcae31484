"""Finds out who a caller is: by an API key, a JWT, a client certificate or the cluster token.

```
 dnb_...              API key            a lookup and a hash
 header.claims.sig    JWT                remembered, or its signature is checked in a thread, few at a time
 other text           cluster token      of another broker
 no token             client certificate, by rules
```

Invariants
    every failure has the same words: a caller does not learn what was wrong, or whether a name exists
    a secret appears in no error and no log line
    an address that failed too often is still believed with credentials that are right and cheap to check: others behind
    the same address go on working
    what is remembered is bounded: verified tokens, failing addresses, waiting callers
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NoReturn

from pydanube.core.access import Principal
from pydanube.core.identity import Credentials, Identity
from pydanube.model.errors import Full, Unauthenticated
from pydanube.model.limits import TOKEN_BYTES_MAX
from pydanube.model.security import BROKER_TYPE
from pydanube.model.settings.sections import AuthSettings
from pydanube.runtime.cache import Cache
from pydanube.runtime.clock import Clock
from pydanube.runtime.network import counted_address
from pydanube.runtime.telemetry import get_logger

from . import api_keys, certificate_rules
from .certificate_rules import CertificateRule
from .jwks import Jwks
from .records import KeyRecord
from .tokens import BadToken, Tokens

log = get_logger(__name__)

CHECKS_AT_ONCE: Final = 2
"""Signatures that are checked at the same time: they take processor time, which publishing needs too."""

WAITING_MAX: Final = 500
"""Callers that wait for the check of a signature; more are refused."""

WAITING_PER_ADDRESS_MAX: Final = 100
"""Of these, from one address: a stranger whose tokens name unknown keys does not take the places of all others."""

REMEMBERED_MAX: Final = 4_096
"""Verified tokens that are remembered; when there are more, all are checked anew."""

CLUSTER_TOKEN_METHOD: Final = "cluster-token"  # noqa: S105  a word
CLUSTER_TOKEN_BYTES_MIN: Final = 32

_REFUSAL: Final = "the credentials are missing or not accepted: show a valid API key, token or client certificate"


def unauthenticated() -> Unauthenticated:
    """Return the one error of every failure."""
    return Unauthenticated(_REFUSAL)


@dataclass(frozen=True, slots=True)
class AcceptedCredentials:
    """What the settings accept, parsed and read from its files."""

    token_secret: bytes = field(default=b"", repr=False)
    """Of Danube's own tokens; empty: there are none."""
    certificate_rules: Sequence[CertificateRule] = ()
    cluster_token: str = field(default="", repr=False)
    """What brokers of the cluster show to each other; empty: none is accepted."""


class Authentication:
    """The authenticator of a broker: core.identity.Authenticator."""

    is_required = True

    def __init__(
        self,
        settings: AuthSettings,
        accepted: AcceptedCredentials,
        keys: Callable[[], Mapping[str, KeyRecord]],
        jwks: Jwks | None,
        clock: Clock,
    ) -> None:
        """`keys` returns the API keys that there are now."""
        self._accepted = accepted
        self._keys = keys
        self._jwks = jwks
        self._clock = clock
        secret = accepted.token_secret
        self._tokens = Tokens(settings, secret, jwks) if secret or jwks is not None else None
        self._failures = AddressFailures(clock, settings.failures_max, settings.failures_block_s)
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting: Counter[str] = Counter()
        """By address; only those with a caller that waits."""
        self._remembered: dict[bytes, Identity] = {}
        self._key_changes = 0
        if jwks is not None:
            jwks.on_changed = self._forget

    async def run(self) -> None:
        """Keep the keys of JWTs up to date, until cancelled."""
        if self._jwks is not None:
            await self._jwks.run()

    async def authenticate(self, credentials: Credentials, address: str) -> Identity:
        """See Authenticator."""
        if not credentials.token and credentials.certificate is None:
            raise unauthenticated() from BadToken("no credentials were shown")  # nothing was tried: it does not count
        found = self._find_cheaply(credentials)
        if found is not None:
            return found
        counted = counted_address(address)
        self._failures.check(counted)
        try:
            return await self._find_by_signature(credentials, counted)
        except BadToken as problem:
            reason = str(problem)
        return await self.refuse(address, reason)

    async def refuse(self, address: str, reason: str) -> NoReturn:
        """See Authenticator."""
        counted = counted_address(address)
        self._failures.check(counted)
        delay = self._failures.add(counted)
        log.info("auth.failed", address=address, reason=reason)
        if delay:
            await self._clock.sleep(delay)
        raise unauthenticated() from BadToken(reason)

    def _find_cheaply(self, credentials: Credentials) -> Identity | None:
        """Return whose credentials these are, if no signature has to be checked for that; None: they are unknown, or a
        signature has to be checked."""
        token, now_us = credentials.token, self._clock.now_us()
        if not token:
            assert credentials.certificate is not None
            return certificate_rules.find_identity(credentials.certificate, self._accepted.certificate_rules, now_us)
        if len(token) > TOKEN_BYTES_MAX:
            return None
        if token.startswith(api_keys.PREFIX):
            return api_keys.find_identity(token, self._keys(), now_us)
        if self._is_cluster_token(token):
            return Identity(Principal("cluster", BROKER_TYPE), CLUSTER_TOKEN_METHOD)
        found = self._remembered.get(_digest(token)) if self._tokens is not None else None
        return found if found is not None and now_us < found.expires_at_us else None

    def _is_cluster_token(self, token: str) -> bool:
        own = self._accepted.cluster_token
        return bool(own) and hmac.compare_digest(token.encode(), own.encode())

    async def _find_by_signature(self, credentials: Credentials, counted: str) -> Identity:
        """Return who shows this JWT. Raises BadToken, and Full if too many wait. Cancelled: nothing is left behind but
        a check that a thread finishes."""
        token = credentials.token
        if not token:
            raise BadToken("no rule of auth.certificate_rules matches the client certificate, or it has expired")
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken("it is too long")
        if token.startswith(api_keys.PREFIX):
            raise BadToken(api_keys.describe_refusal(token, self._keys(), self._clock.now_us()))
        if token.count(".") != 2:
            raise BadToken("it is neither an API key nor a JWT")
        if self._tokens is None:
            raise BadToken("JWTs are not accepted: auth.secret, auth.jwks_file or auth.jwks_url is needed for them")
        if self._waiting.total() >= WAITING_MAX or self._waiting[counted] >= WAITING_PER_ADDRESS_MAX:
            raise Full("too many callers show credentials at this moment: try again")
        self._waiting[counted] += 1
        changes = self._key_changes
        try:
            key = await self._tokens.key_for(token)
            async with self._checks:
                identity = await asyncio.to_thread(self._tokens.verify, token, key, self._clock.now_us())
        finally:
            self._waiting[counted] -= 1
            if not self._waiting[counted]:
                del self._waiting[counted]
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        if changes == self._key_changes:  # its key may be gone by now
            self._remembered[_digest(token)] = identity
        return identity

    def _forget(self) -> None:
        """Check all tokens anew: keys have come or gone."""
        self._key_changes += 1
        self._remembered.clear()


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


FREE_FAILURES: Final = 3
FIRST_DELAY_S: Final = 0.1
DELAY_S_MAX: Final = 2.0
"""Shorter than every time limit of a handshake: the caller gets its answer."""

FORGET_S: Final = 60.0
"""An address that did not fail for so long begins anew."""

ADDRESSES_MAX: Final = 10_000
"""Addresses that are remembered; the one that was asked about longest ago is forgotten first."""


@dataclass(slots=True)
class _Failed:
    count: int
    last_at: float
    refused_until: float = 0.0


class AddressFailures:
    """Slows down an address that shows wrong credentials again and again.

    ```
     failures of an address:   1  2  3 | 4      5      6  ...   failures_max |
     its answers:              at once | later, twice as late each time      | Full, for block_s
    ```
    """

    def __init__(self, clock: Clock, failures_max: int, block_s: float) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._block_s = block_s
        self._of: Cache[str, _Failed] = Cache(ADDRESSES_MAX)

    def __len__(self) -> int:
        return len(self._of)

    def check(self, address: str) -> None:
        """Raise Full if the address has failed too often."""
        found = self._of.get(address)
        if found is not None and self._clock.monotonic() < found.refused_until:
            raise Full(f"address {address} has shown wrong credentials too often: wait {self._block_s:g} s")

    def add(self, address: str) -> float:
        """Count a failure; return for how many seconds its answer is to be held back."""
        now = self._clock.monotonic()
        found = self._of.get(address)
        if found is None or now - found.last_at > FORGET_S:
            found = _Failed(0, now)
        found.count += 1
        found.last_at = now
        if found.count >= self._failures_max:
            found.refused_until = now + self._block_s
            found.count = FREE_FAILURES  # after that time it is answered slowly, not as if it had never failed
        self._of.put(address, found)
        late = found.count - FREE_FAILURES
        return min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(late - 1, 10)) if late > 0 else 0.0
