"""How types of the model are read from JSON and described: derived from the types, so that nothing is declared twice.

`model.json_values` says how their values look. msgspec reads and describes the forms. Unlike the native protocol, an
unknown field is refused by name: it is a mistake of the caller, and ignoring it would hide that.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from pydanube.model import security
from pydanube.model.gaps import Gaps
from pydanube.model.json_values import NO_DEFAULT, attributes_of, fields_of, has_fields
from pydanube.model.names import TopicName
from pydanube.model.positions import Position, type_names
from pydanube.model.storage import StoragePlace
from pydanube.model.written import Written

Load = Callable[[Any], Any]


class JsonForm(NamedTuple):
    """The form of a type in JSON."""

    type: Any
    """The type that msgspec reads and describes."""
    load: Load | None = None
    """Makes the value of the model from what msgspec read; None: that is the value. Raises Invalid."""


DECLARED: Final = "declared"
"""The attribute of a class that is made of another one, which has the docstrings."""

_INT64: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Whole numbers of any size pass JSON, and nothing in the broker is meant for larger ones."""

_POSITION: Final = Annotated[
    str,
    msgspec.Meta(
        description=f"A position: {type_names}.",
        min_length=1,
        max_length=40,
        examples=["earliest", "1000", "2026-01-31T12:00:00Z"],
    ),
]
_TOPIC: Final = Annotated[
    str, msgspec.Meta(description="The full name of a topic.", max_length=402, examples=["/default/orders"])
]
_SPECIAL: Final[dict[Any, JsonForm]] = {
    Position: JsonForm(_POSITION, Position.parse),
    TopicName: JsonForm(_TOPIC, TopicName.parse),
    Gaps: JsonForm(list[tuple[int, int]], Gaps),
    StoragePlace: JsonForm(Annotated[str, msgspec.Meta(max_length=2_000)], StoragePlace.parse),
}

_NAMES: Final = {security.Binding: "AccessBinding"}
"""Names of types in the document, where two types have the same name."""

components: Final[dict[str, Any]] = {}
"""The types that have a form of their own, by name: the name is that of the schema in the document."""


@cache
def form_of(kind: Any) -> JsonForm:
    """Return the form of a type."""
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    origin = get_origin(kind)
    if origin is Annotated:
        annotated = get_args(kind)[0]
        inner = JsonForm(int) if annotated is int else form_of(annotated)  # with limits of its own
        return JsonForm(Annotated[(inner.type, *kind.__metadata__)], inner.load)
    if origin is not None:
        return _generic_form(kind, origin)
    if isinstance(kind, type) and issubclass(kind, Enum):
        words = {str(one): one for one in kind}
        return JsonForm(Literal[tuple(words)], words.__getitem__)
    if isinstance(kind, type) and issubclass(kind, Written):
        return JsonForm(str, kind.parse)
    if has_fields(kind):
        return _object_form(kind)
    return JsonForm(_INT64) if kind is int else JsonForm(kind)


def name_of(kind: Any) -> str:
    """Return the name of a type in the document."""
    return str(_NAMES.get(kind, kind.__name__))


def given_fields(read: object) -> frozenset[str]:
    """Return which fields of an object msgspec has read; the others were absent."""
    if not isinstance(read, msgspec.Struct):
        return frozenset()
    return frozenset(name for name in read.__struct_fields__ if getattr(read, name) is not msgspec.UNSET)


# -- internal ----------------------------------------------------------------------------------------------------------


def _generic_form(kind: Any, origin: Any) -> JsonForm:
    arguments = get_args(kind)
    if origin is Literal:
        return JsonForm(kind)
    forms = [form_of(one) if one is not Ellipsis else JsonForm(Ellipsis) for one in arguments]
    inner = tuple(one.type for one in forms)
    loads = [one.load for one in forms]
    if origin in (Union, types.UnionType):
        return JsonForm(Union[inner], _load_union(kind, loads))  # noqa: UP007 - of a tuple
    if not any(loads):
        return JsonForm(origin[inner])
    if origin is dict:
        return JsonForm(origin[inner], lambda read: {key: loads[1](one) for key, one in read.items()})  # type: ignore[misc]
    assert origin in (list, tuple) and loads[0] is not None and all(one is None for one in loads[1:]), kind
    load = loads[0]
    return JsonForm(origin[inner], lambda read: origin(load(one) for one in read))


def _load_union(kind: Any, loads: list[Load | None]) -> Load | None:
    able = [one for one in loads if one is not None]
    if not able:
        return None
    assert len(able) == 1 and set(get_args(kind)) - {type(None)} == {
        one for one, load in zip(get_args(kind), loads, strict=True) if load is not None
    }, f"{kind}: of a union, only `X | None` has a form"
    return lambda read: None if read is None else able[0](read)


def _object_form(kind: Any) -> JsonForm:
    name = name_of(kind)
    assert components.setdefault(name, kind) is kind, f"two types are called {name}"
    loads: dict[str, Load | None] = {}
    made: list[tuple[str, Any, Any] | tuple[str, Any]] = []
    attributes = attributes_of(kind)
    for one in fields_of(kind):
        form = form_of(one.type)
        loads[one.name] = form.load
        if one.default is NO_DEFAULT:
            made.append((one.name, form.type))
        else:
            nullable = Union[form.type, None] if one.default is None else form.type  # noqa: UP007 - of a variable
            made.append((one.name, Union[nullable, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    form_type = msgspec.defstruct(name, made, forbid_unknown_fields=True, kw_only=True)

    def load(read: Any) -> Any:
        values = {}
        for name, load_field in loads.items():
            value = getattr(read, name)
            if value is not msgspec.UNSET:
                values[attributes[name]] = value if load_field is None or value is None else load_field(value)
        return kind(**values)

    return JsonForm(form_type, load)
