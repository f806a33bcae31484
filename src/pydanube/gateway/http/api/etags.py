"""Entity tags: the version of what is read, and the version that an update expects (If-Match).

The broker compares the expected version in the metadata transaction that writes, so that of two updates with the same
tag only one is carried out; the other is answered with 412 (`Conflict`).
"""

from __future__ import annotations

import re
from typing import Final

from pydanube.model.errors import Conflict, Invalid

from .operations import Answer, ApiCall

_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e]*)"')
_ANY: Final = "*"


def tagged(value: object, version: str, status: int = 0) -> Answer:
    """Return an answer with the entity tag of a version; without one if there is no version."""
    return Answer(value, status, {"etag": f'"{version}"'} if version else {})


def expected_version(call: ApiCall) -> str:
    """Return the version that the header If-Match expects; empty: any. Raises Invalid for what is not an entity tag."""
    given = call.if_match.strip()
    if given in ("", _ANY):
        return ""
    found = _TAG.fullmatch(given)
    if found is None:
        raise Invalid(
            f'If-Match {given[:100]!r} is not an entity tag: send one as an answer had it, such as "9f2c", or *'
        )
    weak, version = found.groups()
    if weak or not version:
        raise Conflict("no state has this entity tag: read the state again, and send the tag of that answer")
    return str(version)
