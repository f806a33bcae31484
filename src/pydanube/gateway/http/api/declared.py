"""Operations of `pydanube.operations` as operations of REST: path, query and body fill the fields."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from pydanube.broker.handlers import carry_out
from pydanube.model.json_values import NO_DEFAULT, FieldForm, fields_of
from pydanube.operations import Operation as Declared
from pydanube.operations import Rest, rests_of

from .etags import expected_version, tagged
from .json_forms import DECLARED
from .operations import BASE, Answer, ApiCall, NoQuery, Operation

_EXPECTED: Final = "expected"
_TOPIC: Final = "/topics/{namespace}/{topic}"
_NOT_SHOWN: Final = frozenset({_EXPECTED, "own_only"})
_BODY_METHODS: Final = frozenset({"PUT", "POST", "PATCH"})


def rest_operations(kind: type[Declared[Any]]) -> list[Operation]:
    """Return the REST operations of an operation."""
    return [_rest_operation(kind, one) for one in rests_of(kind)]


def _rest_operation(kind: type[Declared[Any]], rest: Rest) -> Operation:
    name = rest.name or kind.__name__[0].lower() + kind.__name__[1:]
    summary, description = _described(kind)
    whole, body = rest.body or ("", None)
    in_path = {rest.names.get(one[1:-1], one[1:-1]) for one in rest.path.split("/") if one.startswith("{")}
    left_out = {*in_path, *_NOT_SHOWN, *rest.hides, *rest.sets, whole}
    all_fields = {one.name: one for one in fields_of(kind)}
    fields = [_taken(one, rest) for one in all_fields.values() if one.name not in left_out]
    is_changes = bool(whole) and get_origin(all_fields[whole].type) is dict
    topic = rest.names.get("topic", "topic")
    is_text = topic in all_fields and all_fields[topic].type is str
    is_body = rest.method in _BODY_METHODS and not whole
    given = _struct(kind, rest, name, fields, is_body)
    lists = [one.name for one in fields if not is_body and _is_list(one.type)]
    takes_if_match = _EXPECTED in kind.__struct_fields__

    async def handler(call: ApiCall) -> Answer:
        values = {rest.names.get(name, name): value for name, value in call.path.items()}
        if _TOPIC in rest.path:
            del values["namespace"]
            values[topic] = str(call.topic) if is_text else call.topic
        found = msgspec.structs.asdict(call.body if is_body and fields else call.query)
        values |= found
        if whole:
            values[whole] = {one: getattr(call.body, one) for one in call.given} if is_changes else call.body
        values |= {name: [one] if (one := found[name]) else [] for name in lists}
        values |= rest.sets
        if takes_if_match:
            values[_EXPECTED] = expected_version(call)
        asked = kind(**values)
        answer = await carry_out(call.broker, call.caller.identity, asked)
        made = _answer(
            rest, answer if rest.then is None else await carry_out(call.broker, call.caller.identity, rest.then(asked))
        )
        if not rest.location:
            return made
        return made._replace(headers={**made.headers, "location": BASE + rest.location.format(answer, asked)})

    return Operation(
        method=rest.method,
        path=BASE + rest.path,
        name=name,
        summary=rest.summary or summary,
        description=rest.description or description,
        tag=rest.tag,
        handler=handler,
        query=given if fields and not is_body else NoQuery,
        body=given if fields and is_body else body,
        body_optional=is_body and all(one.default is not NO_DEFAULT for one in fields),
        body_example=rest.example,
        reply=None if rest.answer is None else _shown_type(type(rest.answer), rest),
        reply_example=_shown(rest.answer, rest),
        status=201 if rest.made else rest.status,
        other_statuses={200: "It was there before; nothing has changed."} if rest.made else {},
        errors=rest.errors,
        has_etag=rest.has_etag,
        takes_if_match=takes_if_match,
        native=(kind,),
    )


def _shown_type(answer: type[msgspec.Struct], rest: Rest) -> Any:
    if isinstance(made := getattr(answer, rest.shows, None), property):
        return get_type_hints(made.fget)["return"]
    return next((one.type for one in fields_of(answer) if one.name == rest.shows), answer)


def _shown(answer: msgspec.Struct | None, rest: Rest) -> object:
    return getattr(answer, rest.shows) if rest.shows else answer


def _described(kind: type) -> tuple[str, str]:
    """Return the first paragraph of the docstring of an operation without its stop, and the others."""
    first, _, others = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    return " ".join(first.split()).removesuffix("."), " ".join(others.split())


def _taken(field: FieldForm, rest: Rest) -> FieldForm:
    """Return a field as REST takes it."""
    annotation = rest.takes.get(field.name, field.type)
    default = NO_DEFAULT if field.name in rest.takes else field.default
    return FieldForm(field.name, annotation, rest.defaults.get(field.name, default))


def _struct(kind: type, rest: Rest, name: str, fields: list[FieldForm], is_body: bool) -> type[msgspec.Struct]:
    """Return a struct of the fields that are the query or the body. It has the name that the operation has in REST; the
    docstrings of `kind` describe the fields. A list has at most one entry in a query."""
    made: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for one in fields:
        annotation, default = one.type, one.default
        if not is_body and _is_list(annotation):
            annotation, default = get_args(_plain(annotation))[0], ""
        made.append((one.name, annotation) if default is NO_DEFAULT else (one.name, annotation, default))
    shown = {field: name for name, field in rest.names.items()}
    return msgspec.defstruct(name[0].upper() + name[1:], made, namespace={DECLARED: kind}, kw_only=True, rename=shown)


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_list(annotation: Any) -> bool:
    return get_origin(_plain(annotation)) is list


def _answer(rest: Rest, answer: msgspec.Struct) -> Answer:
    if rest.answer is None:
        return Answer()
    shown = _shown(answer, rest)
    if rest.has_etag:
        return tagged(shown, str(getattr(answer, "version", "")))
    return Answer(shown, 200 if rest.made and not getattr(shown, rest.made) else 0)
