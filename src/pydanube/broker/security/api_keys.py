"""API keys: how they are made, and who shows one.

```
 dnb_1f0c6a2e9b3d4c58_Qm9v...        prefix, id (16 hexadecimal digits), secret (43 characters: 256 random bits)
```

The id tells which key it is, and is no secret: lists, logs and audit events name it. Of the secret only the SHA-256 is
stored: 256 random bits cannot be guessed from it, so a slow hash would protect nothing more.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from pydanube.core.access import Principal
from pydanube.core.identity import Identity
from pydanube.model.errors import Invalid
from pydanube.model.security import GROUP, BoundSubject, NewApiKey, parse_principal_name
from pydanube.runtime.randomness import identity, secret_text

from .records import KeyRecord

PREFIX: Final = "dnb_"
METHOD: Final = "api-key"

_SECRET_BYTES: Final = 32
_ID_DIGITS: Final = 16
_FORM: Final = re.compile(r"dnb_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NO_HASH: Final = bytes(32)
"""Compared with where there is no such key, so that the answer takes as long."""

COMMENT_CHARACTERS_MAX: Final = 200


def new_key(
    principal: BoundSubject,
    now_us: int,
    *,
    groups: Iterable[str] = (),
    expires_at: int = 0,
    comment: str = "",
) -> tuple[NewApiKey, KeyRecord]:
    """Make an API key: what its owner is shown, once, and what is stored under the id `key.id`.

    expires_at      microseconds since 1970; 0: never

    Raises Invalid for a principal that is a group, a group that is no name, and a time that is over.
    """
    if principal.type == GROUP:
        raise Invalid(f"{principal} is a group: an API key belongs to a user or a service_account")
    if 0 < expires_at <= now_us:
        raise Invalid("the API key would have expired already: choose a later time, or none")
    if len(comment) > COMMENT_CHARACTERS_MAX:
        raise Invalid(f"the comment has more than {COMMENT_CHARACTERS_MAX} characters")
    key_id, secret = identity()[:_ID_DIGITS], secret_text(_SECRET_BYTES)
    names = [parse_principal_name(one) for one in dict.fromkeys(groups)]
    record = KeyRecord(str(principal), _hash(secret), names, now_us, expires_at, comment)
    return NewApiKey(record.api_key(key_id), f"{PREFIX}{key_id}_{secret}"), record


def find_identity(token: str, keys: Mapping[str, KeyRecord], now_us: int) -> Identity | None:
    """Return who shows this key; None if it is unknown, wrong or expired."""
    matched = _FORM.fullmatch(token)
    key_id, secret = (matched[1], matched[2]) if matched is not None else ("", "")
    record = keys.get(key_id)
    is_right = hmac.compare_digest(_hash(secret), record.hash if record is not None else _NO_HASH)
    if record is None or not is_right or 0 < record.expires_at <= now_us:
        return None
    subject = BoundSubject.parse(record.principal)
    if subject.type == GROUP:
        return None
    principal = Principal(subject.name, subject.type, tuple(record.groups))
    return Identity(principal, METHOD, record.expires_at, key_id)


def describe_refusal(token: str, keys: Mapping[str, KeyRecord], now_us: int) -> str:
    """Return why `find_identity` finds nobody, for the broker's log; it names the id, and nothing of the secret."""
    matched = _FORM.fullmatch(token)
    if matched is None:
        return "it begins as an API key, and does not have its form: a part may be missing"
    record = keys.get(matched[1])
    if record is None:
        return f"there is no API key {matched[1]}: it was revoked, or is of another cluster"
    if 0 < record.expires_at <= now_us:
        return f"API key {matched[1]} has expired"
    return f"the secret of API key {matched[1]} is wrong"


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
