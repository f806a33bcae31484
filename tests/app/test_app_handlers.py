"""What the annotations of a handler say, and which mistakes are told at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import pydanube
from pydanube.app.handlers import Handler


@dataclass
class Order:
    id: int


class Event(msgspec.Struct):
    id: int


class Placed(msgspec.Struct, tag=True):
    id: int


class Shipped(msgspec.Struct, tag=True):
    box: str


class Model(pydantic.BaseModel):
    id: int


def kind_of(function: Any) -> tuple[Any, bool, str]:
    takes = Handler(function).takes
    return takes.type, takes.many, takes.arrow


@pytest.mark.parametrize("kind", [Order, Event, Model, bytes, str, int, float, dict])
def test_the_type_of_a_value_is_its_annotation(kind: type) -> None:
    async def one(value) -> None: ...  # type: ignore[no-untyped-def]

    async def many(values) -> None: ...  # type: ignore[no-untyped-def]

    one.__annotations__["value"] = kind
    many.__annotations__["values"] = list[kind]  # type: ignore[valid-type]
    assert kind_of(one) == (kind, False, "")
    assert kind_of(many) == (kind, True, "")


def test_a_batch_may_be_columns() -> None:
    import pyarrow

    async def table(rows: pyarrow.Table) -> None: ...

    async def batch(rows: pyarrow.RecordBatch) -> None: ...

    for function, name in ((table, "Table"), (batch, "RecordBatch")):
        function.__annotations__["rows"] = getattr(pyarrow, name)
        assert Handler(function).takes_batch
        assert kind_of(function)[2] == name


def test_a_handler_of_messages_takes_their_type() -> None:
    async def handle(message: pydanube.Message[Order]) -> None: ...

    assert kind_of(handle) == (Order, False, "")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Order, Order),
        (Order | None, Order),
        (list[Order], Order),
        (None, None),
        (bytes, bytes),
        (Placed | Shipped, Placed | Shipped),
        (Placed | Shipped | None, Placed | Shipped),
    ],
)
def test_what_is_returned_is_the_annotation_of_the_result(annotation: Any, expected: Any) -> None:
    async def handle(value: bytes) -> Any: ...

    handle.__annotations__["return"] = annotation
    returns = Handler(handle).returns
    assert (returns and returns.type) == expected


def test_alternatives_are_a_schema_of_their_own() -> None:
    async def handle(event: Placed | Shipped) -> None: ...
    async def many(events: list[Placed | Shipped]) -> None: ...

    assert kind_of(handle) == (Placed | Shipped, False, "")
    assert kind_of(many) == (Placed | Shipped, True, "")
    app = pydanube.App()
    app.subscriber("/default/events", subscription="s")(handle)
    messages = app.asyncapi()["components"]["messages"]
    assert list(messages) == ["PlacedShipped"]


async def no_annotation(order) -> None:  # type: ignore[no-untyped-def]
    ...


async def no_schema(order: complex) -> None: ...


async def a_set(orders: set[Order]) -> None: ...


async def unknown(order: Order, rate: float) -> None: ...


async def two_shapes(orders: list[Order], message: pydanube.Message) -> None: ...  # type: ignore[type-arg]


async def star(*orders: Order) -> None: ...


async def yields(order: Order) -> Any:
    yield order


def of_message(message: pydanube.Message) -> str:  # type: ignore[type-arg]
    return str(message.offset)


async def kept_message(order: Order, offset: Annotated[str, pydanube.Depends(of_message, scope="app")]) -> None: ...


async def bad_dependency(order: Order, books: Annotated[object, pydanube.Depends(no_annotation)]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_annotation, "parameter 'order' has no annotation"),
        (no_schema, "is not a schema"),
        (a_set, "cannot be a schema"),
        (unknown, "parameter 'rate' of unknown is unknown"),
        (two_shapes, "parameter 'message' is not a batch"),
        (star, "cannot be filled"),
        (bad_dependency, "parameter 'order' has no annotation"),
        (yields, "a handler returns its result"),
        (kept_message, "of_message of scope 'app' is called once: it cannot take a message"),
    ],
)
def test_a_handler_that_cannot_work_names_its_function_and_line(function: Any, said: str) -> None:
    app = pydanube.App()
    with pytest.raises(pydanube.Invalid) as raised:
        app.subscriber("/shop/orders", subscription="billing")(function)
    line = function.__code__.co_firstlineno
    assert f"{function.__name__} (test_app_handlers.py:{line}): " in raised.value.message
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "orders"}, "is not a full name"),
        ({"topic": []}, "needs a topic"),
        ({"type": "round"}, "round"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": -1}, "timeout"),
        ({"reject": 3}, "is not an exception class"),
        ({"publish_to": "/shop/invoices"}, "publish_to needs the annotation"),
        ({"topic": "/shop/orders-*"}, "no dead letter topic can be named"),
        ({"retries": pydanube.Retries(backoff="soon")}, "backoff"),
        ({"retries": pydanube.Retries(backoff="5m..1s")}, "delay_ms"),
    ],
)
def test_arguments_that_cannot_work_name_the_function(arguments: dict[str, Any], said: str) -> None:
    app = pydanube.App()

    async def handle(order: Order) -> None: ...

    with pytest.raises(pydanube.Invalid, match=r"handle \(test_app_handlers.py:\d+\): ") as raised:
        app.subscriber(**{"topic": "/shop/orders", "subscription": "billing"} | arguments)(handle)
    assert said in raised.value.message


def test_a_subscription_has_one_handler() -> None:
    app = pydanube.App()

    @app.subscriber(["/shop/orders", "/shop/more"], subscription="billing")
    async def first(order: Order) -> None: ...

    @app.subscriber("/shop/orders", subscription="kitchen")
    async def other(order: Order) -> None: ...

    async def second(order: Order) -> None: ...

    with pytest.raises(
        pydanube.Invalid, match=r"second .* has the handler .*first \(test_app_handlers.py:\d+\) already"
    ):
        app.subscriber("/shop/orders", subscription="billing", concurrency=2)(second)


def test_a_pattern_and_a_topic_that_it_matches_are_one_subscription() -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders-*", subscription="billing", retries=pydanube.Retries(dead_letter="/shop/dlq"))
    async def first(order: Order) -> None: ...

    @app.subscriber("/shop/invoices", subscription="billing")
    async def other(order: Order) -> None: ...

    async def second(order: Order) -> None: ...

    with pytest.raises(pydanube.Invalid, match=r"second .* has the handler .*first "):
        app.subscriber("/shop/orders-eu", subscription="billing")(second)


def test_hooks_that_cannot_be_called_name_their_place() -> None:
    app = pydanube.App()

    def plain(message: Any, call_next: Any) -> None: ...

    async def one(message: Any) -> None: ...

    for function, register, said in (
        (plain, app.middleware, "write async def"),
        (one, app.middleware, r"a middleware is called with \(message, call_next\)"),
        (plain, app.on_error(ValueError), "write async def"),
        (one, app.on_error(ValueError), r"is called with \(error, message\)"),
    ):
        place = rf"{function.__name__} \(test_app_handlers.py:{function.__code__.co_firstlineno}\): .*{said}"
        with pytest.raises(pydanube.Invalid, match=place):
            register(function)  # type: ignore[operator]

    async def two(error: Any, message: Any) -> None: ...

    with pytest.raises(pydanube.Invalid, match=r"test_app_handlers.py:\d+: on_error\(3\) is not of an exception class"):
        app.on_error(3)(two)  # type: ignore[arg-type]


def test_an_app_names_an_argument_that_does_not_exist_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="tokn"):
        pydanube.App(tokn="secret")  # type: ignore[call-arg]


def test_the_function_stays_a_plain_function() -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="billing")
    def bill(order: Order) -> int:
        return order.id

    assert bill(Order(3)) == 3


def test_retries_become_a_failure_policy() -> None:
    policy = pydanube.Retries(3, backoff="1s..5m").policy("/shop/orders", "billing")
    assert (policy.redeliveries_max, policy.delay_ms, policy.delay_max_ms) == (3, 1_000, 300_000)
    assert policy.dead_letter_topic == "/shop/orders-billing-dlq"
    fixed = pydanube.Retries(1, backoff="10s", dead_letter=False).policy("/shop/orders", "billing")
    assert (fixed.next_delay_ms(5), fixed.poison, fixed.dead_letter_topic) == (10_000, pydanube.Poison.BLOCK, "")
