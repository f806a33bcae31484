"""Hypothesis strategies for all that the native protocol carries."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing

import msgspec
from hypothesis import strategies as st

from pydanube.codec.native import requests
from pydanube.model.failure import DELAY_MS_MAX, Backoff, FailurePolicy, Poison
from pydanube.model.gaps import Gaps
from pydanube.model.names import TopicName
from pydanube.model.policies import FIELDS, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, BacklogAction, Policies
from pydanube.model.positions import Position
from pydanube.model.quotas import QuotaSubject
from pydanube.model.schemas import Binding, Framing, ValidationPolicy
from pydanube.model.security import BoundSubject, ResourcePattern
from pydanube.operations import Operation, answer_of

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(0, 2**63 - 1)
ROW_RANGES = st.lists(st.tuples(U32, U32), max_size=20)
OFFSET_RANGES = st.lists(st.tuples(OFFSET, OFFSET).filter(lambda one: one[0] < one[1]), max_size=3)

REQUESTS: list[type[requests.Request]] = list(typing.get_args(requests.AnyRequest))
OTHERS = [
    *(
        one
        for one in vars(requests).values()
        if isinstance(one, type)
        and issubclass(one, msgspec.Struct)
        and one not in REQUESTS
        and one not in (requests.Request, requests.Done, msgspec.Struct)
    ),
    *dict.fromkeys(answer_of(one) for one in REQUESTS if issubclass(one, Operation)),
]
"""Every head that is a map and no request."""

_DEAD_LETTER_TOPIC = "/default/dead"


@st.composite
def failure_policies(draw: st.DrawFn) -> FailurePolicy:
    delays = sorted((draw(st.integers(0, DELAY_MS_MAX)), draw(st.integers(0, DELAY_MS_MAX))))
    poison = draw(st.sampled_from(Poison))
    return FailurePolicy(
        redeliveries_max=draw(st.none() | U16),
        ack_timeout_ms=draw(st.integers(0, DELAY_MS_MAX)),
        delay_ms=delays[0],
        delay_max_ms=delays[1],
        backoff=draw(st.sampled_from(Backoff)),
        poison=poison,
        dead_letter_topic=_DEAD_LETTER_TOPIC if poison is Poison.DEAD_LETTER or draw(st.booleans()) else "",
    )


def policies() -> st.SearchStrategy[Policies]:
    numbers = {
        name: st.none() | st.integers(-1 if name.startswith("retention_") else 0, 2**53 - 1)
        for name in FIELDS
        if name != "backlog_action"
    }
    numbers["segment_bytes"] = st.none() | st.just(0) | st.integers(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    return st.builds(Policies, **numbers, backlog_action=st.none() | st.sampled_from(BacklogAction))


def bindings() -> st.SearchStrategy[Binding]:
    versions = st.tuples(U16, st.just(0)) | st.tuples(st.just(0), U16)
    return st.builds(
        lambda numbers, *others: Binding("orders/value", *others[:2], *numbers, *others[2:]),
        versions,
        st.sampled_from(ValidationPolicy),
        st.booleans(),
        st.booleans(),
        st.sampled_from(Framing),
    )


PLAIN: dict[object, st.SearchStrategy[typing.Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    FailurePolicy: failure_policies(),
    Policies: policies(),
    Position: st.sampled_from([Position("latest"), Position("time", -5), Position("offset", 1000)]),
    Binding: bindings(),
    Gaps: OFFSET_RANGES.map(Gaps),
    TopicName: st.sampled_from(["/default/orders", "/shop/a.b-c"]).map(TopicName.parse),
    BoundSubject: st.sampled_from([BoundSubject("user", "alice"), BoundSubject("group", "ops")]),
    ResourcePattern: st.sampled_from(["/", "/shop/orders-*", "schema:x"]).map(ResourcePattern),
    QuotaSubject: st.sampled_from(["/shop", "user:*"]).map(QuotaSubject.parse),
}


def values_of(kind: object, name: str = "") -> st.SearchStrategy[typing.Any]:
    """Return a strategy for the values that a field of this type (and for some, of this name) may hold."""
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Annotated:
            (meta,) = kind.__metadata__  # type: ignore[attr-defined]
            return st.integers(meta.ge, meta.le) if meta.ge is not None else values_of(arguments[0], name)
        case typing.Literal:
            return st.sampled_from(arguments)
        case builtin if builtin is list and name == "ranges":
            return OFFSET_RANGES
        case None if name == "subscription" and kind is str:
            return st.sampled_from(["billing", "a.b-c"])
        case builtin if builtin is tuple and arguments[1:] == (...,):
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        case builtin if builtin is tuple:
            return st.tuples(*[values_of(one) for one in arguments])
        case builtin if builtin is list:
            return st.lists(values_of(arguments[0]), max_size=3)
        case builtin if builtin is dict:
            return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
        case union if union in (types.UnionType, typing.Union):
            return st.one_of([values_of(one) for one in arguments])
    if kind in PLAIN:
        return PLAIN[kind]
    assert isinstance(kind, type), kind
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    assert dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct | tuple), kind
    hints = typing.get_type_hints(kind, include_extras=True)
    names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [one for one in hints if one[0] != "_"]
    return st.builds(kind, **{name: values_of(hints[name], name) for name in names})
