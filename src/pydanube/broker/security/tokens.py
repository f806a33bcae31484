"""Who shows a JWT: its signature, its claims, and the principal that they name.

```
 header.claims.signature      header: which key; the key, not the token, tells the algorithm
```

Signatures are checked by PyJWT. Tokens of an identity provider are signed with a key of its JWKS (RS256, ES256, EdDSA);
Danube's own tokens with a configured secret (HS256), and name their principal by `principal_type` and `principal_name`.

Invariants
    a token is accepted only with a key that is configured: what its header points to (`jku`, `x5u`, `jwk`, ...) is
    never used, and such a token is refused
    a public key is never used as a secret: each key has one algorithm
    a token without an end is refused
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pydanube.core.access import Principal
from pydanube.core.identity import Identity
from pydanube.model.errors import Invalid, Refused
from pydanube.model.limits import TOKEN_BYTES_MAX
from pydanube.model.security import SERVICE_ACCOUNT, USER, parse_principal_name
from pydanube.model.settings.sections import AuthSettings
from pydanube.runtime.clock import MICROSECONDS

from .jwks import Jwks, VerificationKey

METHOD: Final = "jwt"
SECRET_BYTES_MIN: Final = 32
"""HS256 is as strong as its secret."""

_KEY_ID_CHARACTERS_MAX: Final = 200
_GROUPS_MAX: Final = 200
_SECONDS_MAX: Final = 1e12
_REFUSED_HEADERS: Final = ("jku", "jwk", "x5u", "x5c", "x5t", "crit", "b64", "zip", "enc")
"""Headers that point to other keys, or change how a token is to be read."""
_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
"""Tokens for other purposes (logout, proof of possession) say so in `typ`."""


class BadToken(Exception):
    """The token is not accepted. The reason is for the broker's log, and holds nothing of the token."""


def check_installed() -> None:
    """Raise Refused if PyJWT or what it needs is missing."""
    try:
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: F401
    except ImportError:
        raise Refused(
            "JWTs need the extra auth: pip install 'pydanube[auth]', or remove auth.jwks_file, auth.jwks_url, "
            "auth.secret and auth.secret_file"
        ) from None
    assert jwt.__version__


class Tokens:
    """Checks tokens. `key_for` finds the key of one, `verify` may run in a thread."""

    def __init__(self, settings: AuthSettings, secret: bytes, jwks: Jwks | None) -> None:
        """`secret`: of Danube's own tokens; empty: there are none."""
        self._settings = settings
        self._jwks = jwks
        self._secret = VerificationKey("HS256", secret) if secret else None

    async def key_for(self, token: str) -> VerificationKey:
        """Return the key that the token must be signed with. Raises BadToken."""
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken("it is too long")
        header = _header(token)
        key_id = header.get("kid")
        if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _KEY_ID_CHARACTERS_MAX):
            raise BadToken("its key id is no short text")
        is_own = self._secret is not None and (self._jwks is None or header.get("alg") == "HS256")
        found = self._secret if is_own else None
        if found is None and self._jwks is not None:
            found = await self._jwks.find(key_id)
        if found is None:
            raise BadToken("its key is unknown, or the JWKS cannot be read")
        return found

    def verify(self, token: str, key: VerificationKey, now_us: int) -> Identity:
        """Return who the token names. Takes processor time for its signature. Raises BadToken."""
        import jwt

        try:
            payload = jwt.api_jws.PyJWS().decode(token, key.key, algorithms=[key.algorithm])
            claims = msgspec.json.decode(payload, type=dict[str, Any])
        except jwt.exceptions.PyJWTError as error:
            raise BadToken(f"its signature is not accepted: {type(error).__name__}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            raise BadToken("its claims cannot be read") from None
        ends_at_us = self._check_claims(claims, now_us)
        return Identity(self._principal(claims, is_own=key is self._secret), METHOD, ends_at_us)

    def _check_claims(self, claims: Mapping[str, Any], now_us: int) -> int:
        """Return when the token ends, in microseconds since 1970. Raises BadToken."""
        settings, leeway_us = self._settings, self._settings.leeway_s * MICROSECONDS
        ends_at_us = _time(claims, "exp") + leeway_us
        if ends_at_us <= now_us:
            raise BadToken("it has expired")
        if "nbf" in claims and _time(claims, "nbf") - leeway_us > now_us:
            raise BadToken("it is not valid yet")
        if settings.issuer and claims.get("iss") != settings.issuer:
            raise BadToken("its issuer is another")
        audience = claims.get("aud")
        if settings.audience and settings.audience not in (audience if isinstance(audience, list) else [audience]):
            raise BadToken("it is for another audience")
        return ends_at_us

    def _principal(self, claims: Mapping[str, Any], is_own: bool) -> Principal:
        kind, name = USER, _claim(claims, self._settings.name_claim)
        if is_own and "principal_name" in claims:
            kind, name = claims.get("principal_type", USER), claims["principal_name"]
        if kind not in (USER, SERVICE_ACCOUNT):
            raise BadToken("its principal_type is unknown")
        try:
            return Principal(parse_principal_name(name), kind, _groups(_claim(claims, self._settings.groups_claim)))
        except Invalid:
            raise BadToken("it names no principal") from None


def _header(token: str) -> Mapping[str, Any]:
    """Return the header of a token, which nobody has verified. Raises BadToken."""
    import jwt

    if token.count(".") != 2 or not token.isascii():
        raise BadToken("it has not three parts")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.exceptions.PyJWTError, RecursionError, ValueError):
        raise BadToken("its header cannot be read") from None
    if refused := [name for name in _REFUSED_HEADERS if name in header]:
        raise BadToken(f"its header has {refused[0]}")
    if not isinstance(header.get("typ", ""), str) or header.get("typ", "").lower() not in _TYPES:
        raise BadToken("its typ is not that of an access token")
    return header


def _time(claims: Mapping[str, Any], name: str) -> int:
    """Return a time of the claims in microseconds since 1970. Raises BadToken if it is missing or is none."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"its {name} is missing, or is no time")
    if not 0 <= value <= _SECONDS_MAX:  # neither is NaN, nor a whole number that is too large to be made a float
        raise BadToken(f"its {name} is no time")
    return int(value * MICROSECONDS)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by the way to it, such as `realm_access.roles`; None if there is none."""
    if not name or name in claims:
        return claims.get(name)
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _groups(value: Any) -> tuple[str, ...]:
    """Return the groups that a binding could name; others are left out."""
    given = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    names: list[str] = []
    for one in given[:_GROUPS_MAX]:
        try:
            names.append(parse_principal_name(one))
        except Invalid:
            continue
    return tuple(dict.fromkeys(names))
