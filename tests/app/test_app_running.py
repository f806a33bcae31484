"""Handlers at work, on a real broker: values, results, failures, order, and the end."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import pydanube
from pydanube.runtime import telemetry

FAST = pydanube.Retries(2, backoff="10ms")


@dataclass
class Order:
    id: int
    drink: str = "espresso"


@dataclass
class Invoice:
    order: int


class Seen:
    """What handlers have done, and a wait for it."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = asyncio.Event()

    def add(self, item: Any) -> None:
        self.items.append(item)
        self._changed.set()

    async def wait(self, count: int) -> list[Any]:
        async with asyncio.timeout(60):
            while len(self.items) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.items


async def publish(client: pydanube.Client, topic: str, *values: Any, key: str | None = None) -> None:
    schema = None if isinstance(values[0], bytes) else type(values[0])
    async with client.producer(topic, schema=schema) as producer:
        await producer.send_many(list(values), keys=[key] * len(values))


async def backlog(client: pydanube.Client, topic: str, subscription: str) -> int:
    described = await client.describe_subscription(topic, subscription)
    return sum(place.lag for place in described.partitions)


async def letters(client: pydanube.Client, topic: str, count: int) -> list[pydanube.Message[bytes]]:
    async with client.consumer(topic, subscription="look", start="earliest", create_topic=True) as consumer:
        return [await consumer.receive(timeout=60) for _ in range(count)]


async def test_a_handler_gets_values_and_its_result_is_published_before_the_ack(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="billing", publish_to="/shop/invoices")
    async def bill(order: Order, message: pydanube.Message[Order]) -> Invoice | None:
        assert message.topic == "/shop/orders"
        return Invoice(order.id) if order.id else None

    async with (
        app.running(client.url) as inside,
        inside.consumer("/shop/invoices", subscription="look", schema=Invoice) as invoices,
    ):
        await publish(inside, "/shop/orders", Order(0), Order(7), key="table-3")
        invoice = await invoices.receive(timeout=60)
    assert (invoice.value(), invoice.key) == (Invoice(7), "table-3")
    assert await backlog(client, "/shop/orders", "billing") == 0


async def test_a_list_is_several_messages(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="split", publish_to="/shop/cups")
    async def split(orders: list[Order]) -> list[dict[str, int]]:
        return [{"cup": order.id} for order in orders]

    seen = Seen()

    @app.subscriber("/shop/cups", subscription="bar")
    async def cup(cup: dict[str, int]) -> None:
        seen.add(cup["cup"])

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1), Order(2), Order(3))
        assert sorted(await seen.wait(3)) == [1, 2, 3]


async def test_a_batch_may_come_as_columns(client: pydanube.Client) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    app, seen = pydanube.App(), Seen()

    async def count(table: pyarrow.Table, batch: pydanube.ReceivedBatch) -> None:
        seen.add((table.num_rows, len(batch), table.column("payload").to_pylist()))

    count.__annotations__["table"] = pyarrow.Table
    app.subscriber("/shop/orders", subscription="count")(count)
    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", b"a", b"b")
        assert await seen.wait(1) == [(2, 2, [b"a", b"b"])]


async def test_a_plain_function_runs_in_a_thread(client: pydanube.Client) -> None:
    app, loop, seen = pydanube.App(), asyncio.get_running_loop(), Seen()
    barrier = threading.Barrier(2, timeout=60)

    @app.subscriber("/shop/orders", subscription="print", concurrency=2)
    def print_order(order: Order) -> None:
        barrier.wait()  # two of them at a time
        loop.call_soon_threadsafe(seen.add, threading.current_thread() is not threading.main_thread())

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1), Order(2))
        assert await seen.wait(2) == [True, True]


async def test_an_async_function_in_a_plain_wrapper_is_awaited(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()

    async def inner(order: Order) -> None:
        seen.add(order.id)

    @app.subscriber("/shop/orders", subscription="print")
    @functools.wraps(inner)
    def wrapper(order: Order) -> Any:
        return inner(order)

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        assert await seen.wait(1) == [1]


async def test_a_pattern_gets_the_messages_of_all_topics_also_of_later_ones(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()
    await client.topics.create("/shop/orders-eu")

    @app.subscriber(
        "/shop/orders-*",
        subscription="audit",
        start="earliest",
        retries=pydanube.Retries(0, dead_letter="/shop/dead"),
    )
    async def audit(order: Order, message: pydanube.Message[Order]) -> None:
        if order.id == 3:
            raise ValueError("no such order")
        seen.add((message.topic, order.id))

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders-eu", Order(1), Order(3))
        await publish(inside, "/shop/others", Order(0))
        await publish(inside, "/shop/orders-us", Order(2))
        assert sorted(await seen.wait(2)) == [("/shop/orders-eu", 1), ("/shop/orders-us", 2)]
        (letter,) = await letters(inside, "/shop/dead", 1)
        assert letter.attributes["x-failure-reason"] == "ValueError: no such order"


async def test_the_broker_sends_no_more_than_the_prefetch_while_all_calls_are_busy(client: pydanube.Client) -> None:
    app, seen, go_on = pydanube.App(), Seen(), asyncio.Event()

    @app.subscriber("/shop/orders", subscription="bar", concurrency=2, prefetch=10)
    async def serve(order: Order) -> None:
        seen.add(order.id)
        await go_on.wait()

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", *(Order(n) for n in range(500)))
        await seen.wait(2)
        described = await client.describe_subscription("/shop/orders", "bar")
        assert len(seen.items) == 2
        assert sum(place.unacked for place in described.partitions) <= 2 * 10 + 2
        go_on.set()
        await seen.wait(500)
    assert sorted(seen.items) == list(range(500))


async def test_a_failed_message_is_tried_again_and_then_a_dead_letter(client: pydanube.Client) -> None:
    app, tries = pydanube.App(), Seen()

    @app.subscriber("/shop/orders", subscription="billing", retries=FAST)
    async def bill(order: Order) -> None:
        tries.add(order.id)
        raise KeyError("no such customer")

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        (letter,) = await letters(inside, "/shop/orders-billing-dlq", 1)
    assert tries.items == [1, 1, 1]
    assert letter.attributes["x-failure-reason"] == "KeyError: 'no such customer'"


@pytest.mark.parametrize("raised", [ValueError("a bad order"), pydanube.Reject("a bad order")])
async def test_a_rejected_message_is_a_dead_letter_at_once(client: pydanube.Client, raised: Exception) -> None:
    app, tries = pydanube.App(), Seen()

    @app.subscriber("/shop/orders", subscription="billing", reject=(ValueError,))
    async def bill(order: Order) -> None:
        tries.add(order.id)
        raise raised

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        (letter,) = await letters(inside, "/shop/orders-billing-dlq", 1)
    assert tries.items == [1]
    assert letter.attributes["x-failure-reason"].endswith("a bad order")


@pytest.mark.parametrize("batches", [False, True])
async def test_a_message_that_does_not_decode_is_rejected_with_the_reason(
    client: pydanube.Client, batches: bool
) -> None:
    app, seen = pydanube.App(), Seen()

    async def one(order: Order) -> None:
        seen.add(order.id)

    async def many(orders: list[Order]) -> None:
        for order in orders:
            seen.add(order.id)

    app.subscriber("/shop/orders", subscription="billing")(many if batches else one)
    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", b'{"id": 1}', b"not an order", b'{"id": 3}')
        (letter,) = await letters(inside, "/shop/orders-billing-dlq", 1)
        assert await seen.wait(2) == [1, 3]
    assert letter.payload == b"not an order"
    assert "cannot be decoded" in letter.attributes["x-failure-reason"]
    assert await backlog(client, "/shop/orders", "billing") == 0


async def test_retry_sets_the_delay_and_error_handlers_decide(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()

    @app.on_error(LookupError)
    async def shrug(error: Exception, message: pydanube.Message[Any]) -> None:
        seen.add((type(error), message.offset))

    @app.subscriber("/shop/orders", subscription="billing", retries=pydanube.Retries(1, backoff="1h"))
    async def bill(order: Order, message: pydanube.Message[Order]) -> None:
        if not message.redeliveries:
            raise pydanube.Retry("not yet", delay=0)
        assert message.failure_reason == "not yet"
        raise KeyError

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        assert await seen.wait(1) == [(KeyError, 0)]
    assert await backlog(client, "/shop/orders", "billing") == 0


async def test_a_batch_may_fail_in_part(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()

    @app.subscriber("/shop/orders", subscription="billing", retries=FAST)
    async def bill(orders: list[Order]) -> None:
        seen.add([order.id for order in orders])
        if len(orders) == 3:
            raise pydanube.PartialFailure({1: KeyError("later"), 2: pydanube.Reject("never")})

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(0), Order(1), Order(2))
        assert await seen.wait(2) == [[0, 1, 2], [1]]
        (letter,) = await letters(inside, "/shop/orders-billing-dlq", 1)
    assert letter.attributes["x-failure-reason"] == "never"
    assert await backlog(client, "/shop/orders", "billing") == 0


async def test_a_handler_that_hangs_or_is_cancelled_or_returns_nonsense_has_failed(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="a", timeout=0.01, publish_to="/shop/out", retries=pydanube.Retries(0))
    async def handle(order: Order) -> Invoice:
        if order.id == 0:
            await asyncio.Event().wait()
        if order.id == 1:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting
        return "nonsense"  # type: ignore[return-value]

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(0), Order(1), Order(2))
        found = await letters(inside, "/shop/orders-a-dlq", 3)
    reasons = [letter.attributes["x-failure-reason"] for letter in found]
    assert "did not end within 0.01 s" in reasons[0]
    assert "was cancelled" in reasons[1]
    assert "is not a value of the schema Invoice" in reasons[2]


async def test_one_line_says_which_message_failed_and_where(
    client: pydanube.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    app = pydanube.App()

    def deep() -> None:
        raise RuntimeError("no\nmilk")

    @app.subscriber("/shop/orders", subscription="bar", retries=pydanube.Retries(0))
    async def serve(order: Order) -> None:
        deep()

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        await letters(inside, "/shop/orders-bar-dlq", 1)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "app.message_failed" in line]
    assert f"place=test_app_running.py:{deep.__code__.co_firstlineno + 1}" in line
    assert "topic=/shop/orders partition=0 offset=0" in line and "no milk" in line


@pytest.mark.parametrize("kind", ["key-shared", "failover"])
async def test_calls_overlap_and_keep_the_order_of_the_subscription(client: pydanube.Client, kind: Any) -> None:
    app, seen = pydanube.App(), Seen()
    running: dict[Any, int] = defaultdict(int)
    met = asyncio.Event()

    @app.subscriber("/shop/orders", subscription="bar", type=kind, concurrency=8)
    async def serve(order: Order, message: pydanube.Message[Order]) -> None:
        lane = message.key if kind == "key-shared" else message.partition
        running[lane] += 1
        assert running[lane] == 1
        if len([one for one in running.values() if one]) > 1:
            met.set()
        await met.wait()  # until two lanes run at the same time
        await asyncio.sleep(0)
        running[lane] -= 1
        seen.add((lane, order.id))

    await client.create_topic("/shop/orders", partitions=3)
    async with app.running(client.url) as inside:
        async with inside.producer("/shop/orders", schema=Order) as producer:
            await producer.send_many([Order(n) for n in range(300)], keys=[f"key-{n % 7}" for n in range(300)])
        await seen.wait(300)
    by_lane = defaultdict(list)
    for lane, number in seen.items:
        by_lane[lane].append(number)
    assert len(by_lane) > 1
    assert all(numbers == sorted(numbers) for numbers in by_lane.values())


async def test_dependencies_are_made_and_ended(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()

    async def books() -> AsyncIterator[str]:
        seen.add("books opened")
        yield "books"
        seen.add("books closed")

    def table(message: pydanube.Message[Any]) -> AsyncIterator[str]:
        seen.add(f"table {message.offset}")
        yield f"table {message.offset}"  # type: ignore[misc]
        seen.add("table free")

    async def waiter(at: str = pydanube.Depends(table)) -> str:  # type: ignore[assignment]
        return f"waiter of {at}"

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(
        order: Order,
        who: str = pydanube.Depends(waiter),  # type: ignore[assignment]
        at: str = pydanube.Depends(table),  # type: ignore[assignment]
        kept: str = pydanube.Depends(books, scope="app"),  # type: ignore[assignment]
        client: pydanube.Client | None = None,
        tip: int = 3,
    ) -> None:
        seen.add((who, at, kept, tip))

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1), Order(2))
        await seen.wait(7)
    assert seen.items == [
        "table 0",
        "books opened",
        ("waiter of table 0", "table 0", "books", 3),
        "table free",
        "table 1",
        ("waiter of table 1", "table 1", "books", 3),
        "table free",
        "books closed",
    ]


async def test_middlewares_and_the_lifespan_are_around_the_handlers(client: pydanube.Client) -> None:
    from contextlib import asynccontextmanager

    seen = Seen()

    @asynccontextmanager
    async def lifespan(app: pydanube.App) -> AsyncIterator[None]:
        seen.add("begin")
        yield
        seen.add("end")

    app = pydanube.App(client.url, lifespan=lifespan)

    @app.middleware
    async def outer(message: Any, call_next: Any) -> Any:
        seen.add("outer")
        return await call_next()

    @app.middleware
    async def inner(message: Any, call_next: Any) -> Any:
        seen.add("inner")
        return await call_next()

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(order: Order) -> None:
        seen.add("served")

    async with app.running():
        await publish(client, "/shop/orders", Order(1))
        await seen.wait(4)
    assert seen.items == ["begin", "outer", "inner", "served", "end"]


async def test_the_end_waits_for_calls_that_run_and_acks_them(client: pydanube.Client) -> None:
    app, begun, finish = pydanube.App(), Seen(), asyncio.Event()

    @app.subscriber("/shop/orders", subscription="bar", concurrency=1_000)
    async def serve(order: Order) -> None:
        begun.add(order.id)
        await finish.wait()

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", *(Order(n) for n in range(2_000)))
        await begun.wait(1_000)
        asyncio.get_running_loop().call_later(0.05, finish.set)
    assert len(begun.items) == 1_000
    assert await backlog(client, "/shop/orders", "bar") == 1_000


async def test_calls_that_do_not_end_are_cancelled_and_their_messages_come_again(client: pydanube.Client) -> None:
    app, begun = pydanube.App(drain_seconds=0.01), Seen()

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(order: Order, message: pydanube.Message[Order]) -> None:
        begun.add(message.redeliveries)
        if len(begun.items) == 1:
            await asyncio.Event().wait()

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1))
        await begun.wait(1)
    async with app.running(client.url):
        assert await begun.wait(2) == [0, 0]


async def test_a_subscription_that_cannot_go_on_ends_the_block(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(order: Order) -> None: ...

    async def run() -> None:
        async with app.running(client.url) as inside:
            await inside.delete_topic("/shop/orders")
            await asyncio.Event().wait()

    with pytest.raises(pydanube.Refused, match="/shop/orders"):
        await run()
    assert "not running" in repr(app)


async def test_errors_of_the_block_are_raised_as_they_are(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(order: Order) -> None: ...

    with pytest.raises(ZeroDivisionError):
        async with app.running(client.url):
            raise ZeroDivisionError


async def test_changed_retries_reach_a_subscription_that_exists_and_the_log_says_so(
    client: pydanube.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())
    caplog.set_level(logging.INFO, "pydanube")
    for count in (1, 4):
        app = pydanube.App()

        @app.subscriber("/shop/orders", subscription="bar", retries=pydanube.Retries(count))
        async def serve(order: Order) -> None: ...

        async with app.running(client.url):
            found = await client.describe_subscription("/shop/orders", "bar")
        assert found.failure_policy is not None and found.failure_policy.redeliveries_max == count
        assert ("app.failure_policy_set" in caplog.text) == (count == 4)
    assert "consumer.failure_policy_differs" not in caplog.text


async def test_two_workers_share_a_subscription(client: pydanube.Client) -> None:
    seen = Seen()

    def version(number: int) -> pydanube.App:
        app = pydanube.App()

        @app.subscriber("/shop/orders", subscription="bar", prefetch=1)
        async def serve(order: Order) -> None:
            seen.add(order.id)

        return app

    async with version(1).running(client.url), version(2).running(client.url):
        await publish(client, "/shop/orders", *(Order(n) for n in range(100)))
        await seen.wait(100)
    assert sorted(seen.items) == list(range(100))


async def test_two_versions_of_an_app_work_side_by_side(client: pydanube.Client) -> None:
    """The second version has another retry policy, concurrency, value and result, as during a rolling upgrade."""
    seen: dict[int, Seen] = {1: Seen(), 2: Seen()}
    both = asyncio.Event()

    @dataclass
    class NewOrder:
        id: int
        drink: str = "espresso"
        milk: bool = False

    old, new = pydanube.App(), pydanube.App()
    options: dict[str, Any] = {"subscription": "bar", "type": "key-shared", "prefetch": 5, "publish_to": "/shop/done"}

    async def note(version: int, number: int) -> None:
        seen[version].add(number)
        if all(one.items for one in seen.values()):
            both.set()
        await both.wait()  # until both versions have worked

    @old.subscriber("/shop/orders", **options)
    async def serve(order: Order) -> Invoice:
        await note(1, order.id)
        return Invoice(order.id)

    @new.subscriber("/shop/orders", **options, concurrency=4, retries=pydanube.Retries(1))
    async def serve_new(order: NewOrder) -> Invoice:
        assert order.milk is False
        await note(2, order.id)
        return Invoice(order.id)

    async with old.running(client.url) as first:
        async with new.running(client.url), first.producer("/shop/orders", schema=Order) as producer:
            await producer.send_many([Order(n) for n in range(100)], keys=[f"table-{n % 20}" for n in range(100)])
            done = await letters(client, "/shop/done", 100)
        before = len(seen[1].items)
        await publish(first, "/shop/orders", Order(100))
        await seen[1].wait(before + 1)  # the old one goes on alone
    assert {done_one.payload for done_one in done} == {b'{"order":%d}' % n for n in range(100)}
    policy = (await client.describe_subscription("/shop/orders", "bar")).failure_policy
    assert policy is not None and policy.redeliveries_max == 1


async def test_a_topic_that_is_not_reliable_takes_a_handler_too(client: pydanube.Client) -> None:
    app, seen = pydanube.App(), Seen()
    await client.topics.create("/shop/orders", reliable=False)

    @app.subscriber("/shop/orders", subscription="bar")
    async def serve(order: Order) -> None:
        seen.add(order.id)
        if order.id < 3:
            raise pydanube.Reject("bad") if order.id == 1 else ValueError("worse")

    async with app.running(client.url) as inside:
        await publish(inside, "/shop/orders", Order(1), Order(2), Order(3))
        assert await seen.wait(3) == [1, 2, 3]
