"""Limits of the model's fields, for the document: the model itself checks them when a value is made."""

from __future__ import annotations

from typing import Any, Final

from pydanube.model.failure import DELAY_MS_MAX, FailurePolicy
from pydanube.model.limits import NAME_CHARACTERS_MAX, PARTITIONS_MAX, SCHEMA_BYTES_MAX, SCHEMA_REFERENCES_MAX
from pydanube.model.paging import FILTER_CHARACTERS_MAX, PAGE_MAX, TOPIC_NUMBERS, PageQuery
from pydanube.model.policies import FIELDS, SEGMENT_BYTES_MAX, Policies
from pydanube.model.schemas import Binding, SchemaDefinition, SchemaReference
from pydanube.model.topics import TopicConfig

from .paging import AFTER_CHARACTERS_MAX
from .topics import TopicQuery

_DELAY: Final = {"minimum": 0, "maximum": DELAY_MS_MAX}
_VERSION: Final = {"minimum": 0, "maximum": 2**31 - 1}
_SUBJECT: Final = {"minLength": 1, "maxLength": NAME_CHARACTERS_MAX, "pattern": "^[A-Za-z0-9_.:/@+-]+$"}


def _policy_limits(name: str) -> dict[str, Any]:
    if name == "backlog_action":
        return {}
    least = -1 if name.startswith("retention_") else 0
    return {"minimum": least, "maximum": SEGMENT_BYTES_MAX if name == "segment_bytes" else 2**53 - 1}


def _orders(*names: str) -> dict[str, Any]:
    return {"enum": [*names, *(f"-{name}" for name in names)]}


def limits_of(kind: type, name: str) -> dict[str, Any]:
    """Return the limits of a field, which a class may have from its base."""
    found = (_LIMITS.get((one, name)) for one in kind.__mro__)
    return next((one for one in found if one is not None), {})


_LIMITS: Final[dict[tuple[type, str], dict[str, Any]]] = {
    (PageQuery, "filter"): {"maxLength": FILTER_CHARACTERS_MAX},
    (PageQuery, "sort"): _orders("name"),
    (PageQuery, "limit"): {
        "minimum": 1,
        "maximum": PAGE_MAX,
        "description": "The most entries of one page.",
    },
    (PageQuery, "after"): {"maxLength": AFTER_CHARACTERS_MAX},
    (TopicQuery, "sort"): _orders("name", *TOPIC_NUMBERS),
    (TopicConfig, "partitions"): {"minimum": 0, "maximum": PARTITIONS_MAX},
    (FailurePolicy, "redeliveries_max"): {"minimum": 0, "maximum": 2**16 - 1},
    (FailurePolicy, "ack_timeout_ms"): _DELAY,
    (FailurePolicy, "delay_ms"): _DELAY,
    (FailurePolicy, "delay_max_ms"): _DELAY,
    (FailurePolicy, "dead_letter_topic"): {"maxLength": 2 * NAME_CHARACTERS_MAX + 2},
    (SchemaDefinition, "text"): {"maxLength": SCHEMA_BYTES_MAX},
    (SchemaDefinition, "references"): {"maxItems": SCHEMA_REFERENCES_MAX},
    (SchemaReference, "subject"): _SUBJECT,
    (SchemaReference, "version"): _VERSION,
    (Binding, "subject"): _SUBJECT,
    (Binding, "pinned_version"): _VERSION,
    (Binding, "minimum_version"): _VERSION,
    **{(Policies, name): _policy_limits(name) for name in FIELDS},
}
