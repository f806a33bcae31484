"""The public keys that tokens are signed with: a JWKS document of a file or a URL.

```
 every `interval_s` ────────────────────┐
                                        ├─► run(): fetch ─► parse (in a thread) ─► keys by their ids
 find(): an unknown id, now and then ───┘            └ it fails: the former keys go on, for `stale_s`
```

Invariants
    each key has one algorithm, by its type: RSA is RS256, P-256 is ES256, Ed25519 is EdDSA; symmetric keys are no keys
    two keys of a document never have one id
    at most one fetch runs at a time, and unknown ids cause one at most every MISSING_S
    keys that were read longer ago than `stale_s` are not used
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from pydanube.model.addresses import is_loopback
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.limits import KIB
from pydanube.runtime.clock import Clock
from pydanube.runtime.http_get import NotHttp, http_get
from pydanube.runtime.tasks import run_together
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

DOCUMENT_BYTES_MAX: Final = 256 * KIB
KEYS_MAX: Final = 100

FETCH_SECONDS: Final = 5.0
"""How long a URL may take to answer, all in all."""

MISSING_S: Final = 10.0
"""After a key was asked for that is not known, the document is read again at most once in so many seconds."""

WAIT_SECONDS: Final = 2 * FETCH_SECONDS
"""How long a caller waits for a document that may have its key."""

FILE_INTERVAL_S: Final = 1.0
"""How often it is checked whether a file has changed."""

RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
"""Checking a signature takes longer with a larger key."""

_EXPONENT_BITS_MAX: Final = 32
_ALGORITHMS: Final = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}

Fetch = Callable[[], Awaitable[bytes | None]]
"""Returns the document; None: it is the one that was fetched last."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and the one algorithm that it is used with."""

    algorithm: str
    key: Any


class Jwks:
    """The keys of one document, as it was read last."""

    def __init__(self, fetch: Fetch, clock: Clock, interval_s: float, stale_s: float) -> None:
        self._fetch = fetch
        self._clock = clock
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._keys: Mapping[str, VerificationKey] = {}
        self._document = b""
        self._is_bad = False
        """Whether the document that was fetched last could not be used."""
        self._read_at: float | None = None
        self._asked_at: float | None = None
        self._wanted = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        """Done when the document was read that somebody waits for."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when the keys have changed or are no longer used."""

    async def load(self) -> None:
        """Read the document. Raises what is wrong with it: Invalid or Unavailable."""
        self._asked_at = self._clock.monotonic()
        document = await self._fetch()
        if document is None and self._is_bad:
            return  # it was refused, and has not changed since
        if document is not None:
            self._is_bad = True
            keys = await asyncio.to_thread(parse_jwks, document)
            self._is_bad = False
            if document != self._document or not self._keys:
                self._keys, self._document = keys, document
                self.on_changed()
        self._read_at = self._clock.monotonic()

    async def run(self) -> None:
        """Read the document at intervals and when a key is missing, until cancelled."""
        await run_together([self._keep_wanting(), self._keep_reading()])

    async def find(self, key_id: str | None) -> VerificationKey | None:
        """Return a key by its id; without an id, the only key. None: there is no such key. Has the document read again,
        now and then, if the key is not known. Cancelled: the document is read all the same."""
        found = self._known(key_id)
        if found is None and (self._next is not None or self._may_ask()):
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await asyncio.shield(self._want())
            found = self._known(key_id)
        return found

    def _want(self) -> asyncio.Future[None]:
        """Have the document read; return what is done then."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._wanted.set()
        return self._next

    async def _keep_wanting(self) -> None:
        while True:
            await self._clock.sleep(self._interval_s)
            self._want()

    async def _keep_reading(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.load()
            except DanubeError as error:
                log.warning("auth.jwks_not_read", error=error.message)
            finally:
                done, self._next = self._next, None
                if done is not None and not done.done():
                    done.set_result(None)
            if self._is_stale and self._keys:
                self._keys = {}
                log.error(
                    "auth.jwks_too_old", advice="the keys of JWTs cannot be read: JWTs are refused until they can"
                )
                self.on_changed()

    def _known(self, key_id: str | None) -> VerificationKey | None:
        if self._is_stale:
            return None
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    @property
    def _is_stale(self) -> bool:
        return self._read_at is None or self._clock.monotonic() - self._read_at > self._stale_s

    def _may_ask(self) -> bool:
        return self._asked_at is None or self._clock.monotonic() - self._asked_at >= MISSING_S


# -- where documents come from -----------------------------------------------------------------------------------------


class JwksFile:
    """A document in a file, read when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    async def __call__(self) -> bytes | None:
        return await asyncio.to_thread(self._read_changed)

    def _read_changed(self) -> bytes | None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return None
            if stat.st_size > DOCUMENT_BYTES_MAX:
                raise Invalid(f"{self._path} has more than {DOCUMENT_BYTES_MAX} bytes: it is no JWKS")
            document = self._path.read_bytes()
        except OSError as error:
            raise Unavailable(f"the JWKS file {self._path} cannot be read: {error.strerror or error}") from None
        self._seen = seen
        return document


class JwksUrl:
    """A document at a URL. Redirects are not followed: an answer that is not 200 is an error."""

    def __init__(self, url: str, ca_file: Path | None = None, allow_plain: bool = False) -> None:
        """Raises Invalid for a URL that is not https, unless its host is a loopback address or `allow_plain` is set."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise Invalid("auth.jwks_url is no URL: check its host and port") from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.fragment:
            raise Invalid("auth.jwks_url must be a URL with https, a host and no password")
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """The URL in messages: its parameters may hold a key."""
        if parts.scheme == "http" and not (allow_plain or is_loopback(host)):
            raise Invalid(
                f"auth.jwks_url={self._shown} is not encrypted: who can change the answer could sign any token. Use "
                f"https, or set auth.jwks_allow_plain"
            )
        self._is_encrypted = parts.scheme == "https"
        self._host, self._port = host, port or (443 if self._is_encrypted else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None

    async def __call__(self) -> bytes | None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                if self._is_encrypted and self._context is None:
                    self._context = await asyncio.to_thread(self._make_context)
                answer = await http_get(self._host, self._port, self._path, DOCUMENT_BYTES_MAX, tls=self._context)
        except TimeoutError:
            raise Unavailable(f"{self._shown} did not answer within {FETCH_SECONDS:g} s") from None
        except OSError as error:
            raise Unavailable(f"{self._shown} cannot be reached: {error.strerror or error}") from None
        except NotHttp as error:
            raise Unavailable(f"{self._shown} did not answer with a JWKS: {error}") from None
        if answer.status != 200:
            raise Unavailable(f"{self._shown} answered {answer.status}; redirects are not followed")
        return answer.body

    def _make_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=None if self._ca_file is None else str(self._ca_file))


# -- what a document says ----------------------------------------------------------------------------------------------


class _Key(msgspec.Struct):
    kty: str
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    key_ops: tuple[str, ...] = ("verify",)
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: str = ""


class _Document(msgspec.Struct):
    keys: list[_Key]


def parse_jwks(document: bytes) -> Mapping[str, VerificationKey]:
    """Return the keys of a document that can sign tokens here, by their ids. Keys of other kinds are left out.

    Raises Invalid for a document that is no JWKS, has two keys of one id, a private key, or no key of use.
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise Invalid(f"the JWKS has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        given = msgspec.json.decode(document, type=_Document).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid("the document is no JWKS: it has no list of keys") from None
    if len(given) > KEYS_MAX:
        raise Invalid(f"the JWKS has more than {KEYS_MAX} keys")
    keys: dict[str, VerificationKey] = {}
    ids: set[str] = set()
    for one in given:
        if one.d:
            raise Invalid("the JWKS holds a private key: publish only the public ones, and replace that key")
        if one.kid in ids:
            raise Invalid(f"the JWKS has two keys with the id {one.kid[:100]!r}")
        ids.add(one.kid)
        found = _verification_key(one)
        if found is not None:
            keys[one.kid] = found
    if not keys:
        raise Invalid("the JWKS has no key for RS256, ES256 or EdDSA")
    return keys


def _verification_key(given: _Key) -> VerificationKey | None:
    """Return a key for signatures; None if it is for something else, broken or too weak."""
    algorithm = _ALGORITHMS.get((given.kty, given.crv))
    if algorithm is None or given.use != "sig" or "verify" not in given.key_ops or given.alg not in ("", algorithm):
        return None
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm  # needs the extra `auth`

    readers: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
    public = {name: getattr(given, name) for name in ("kty", "crv", "n", "e", "x", "y") if getattr(given, name)}
    try:
        key = readers[algorithm].from_jwk(public)
    except Exception as error:  # of many classes, also of binascii
        log.warning("auth.jwks_key_ignored", key_id=given.kid[:100], error=type(error).__name__)
        return None
    if algorithm == "RS256":
        numbers = key.public_numbers()
        if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX or numbers.e.bit_length() > _EXPONENT_BITS_MAX:
            allowed = f"RSA keys have {RSA_BITS_MIN} to {RSA_BITS_MAX} bits and a small exponent"
            log.warning("auth.jwks_key_ignored", key_id=given.kid[:100], error=allowed)
            return None
    return VerificationKey(algorithm, key)
