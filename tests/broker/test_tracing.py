"""Spans of batches whose messages carry a trace context: which are made, and what they say."""

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from trace_collector import open_collector

from pydanube import connect, connect_blocking, testing
from pydanube.broker.observe.tracing import LINKS_MAX, SPANS_PER_S, BatchTracer, contexts_of
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.model.errors import Refused
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from pydanube.model.topics import SubscriptionType
from pydanube.model.trace_context import TraceContext
from pydanube.runtime.clock import ManualClock

pytestmark = pytest.mark.usefixtures("clock")


ONE = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 1, "vendor=x")


def context(number: int, flags: int = 1) -> TraceContext:
    return TraceContext(1_000 + number, 1 + number, flags)


class Sink:
    """Keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, ...]] = []

    def export(self, *span: Any) -> None:
        self.spans.append(span)


@pytest.fixture
def sink(client) -> Sink:
    found = Sink()
    client.broker.metrics.tracer = BatchTracer(found, client.clock)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
    ],
)
def test_what_is_no_trace_context_is_ignored(text: str) -> None:
    assert TraceContext.parse(text) is None


def test_a_trace_context_is_written_as_the_recommendation_says() -> None:
    found = ONE.attributes()
    assert found == {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=x",
    }
    assert TraceContext.parse(found["traceparent"], found["tracestate"]) == ONE
    later = TraceContext.parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later")
    assert later == ONE._replace(state="")


async def test_a_publish_and_a_delivery_of_a_traced_batch_have_spans(client, topic, clock, sink):
    consumer = await client.subscribe(consumer="a")
    begun_us = clock.now_us()
    await client.publish(await client.producer(), [b"x", b"y"], attributes=[ONE.attributes(), {"other": "1"}])
    await consumer.wait_for(2)
    publish, deliver = sink.spans
    name, kind, parent, links, start_us, end_us, attributes = publish
    assert (name, kind, parent, links) == (f"publish {client.topic}", "producer", ONE, [])
    assert begun_us <= start_us <= end_us == clock.now_us()
    assert attributes["messaging.destination.name"] == str(client.topic)
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["messaging.danube.message.offset"] == 0
    assert deliver[:3] == (f"deliver {client.topic}", "consumer", ONE)
    assert deliver[6]["messaging.destination.subscription.name"] == "billing"
    assert deliver[6]["messaging.client.id"] == "a"


async def test_messages_without_a_sampled_context_have_no_spans(client, topic, sink):
    consumer = await client.subscribe()
    producer = await client.producer()
    await client.publish(producer, [b"x"])
    await client.publish(producer, [b"x"], attributes=[{"other": "1"}])
    await client.publish(producer, [b"x"], attributes=[context(1, flags=0).attributes()])
    await client.publish(producer, [b"x"], attributes=[{"traceparent": "nonsense"}])
    await consumer.wait_for(4)
    assert sink.spans == []


async def test_a_consumer_of_some_rows_is_linked_to_their_traces_only(client, topic, sink):
    consumers = [await client.subscribe(consumer=name, kind=SubscriptionType.SHARED, credit=2) for name in "ab"]
    traces = [context(number) for number in range(4)]
    await client.publish(await client.producer(), [b"x"] * 4, attributes=[one.attributes() for one in traces])
    for consumer in consumers:
        await consumer.wait_for(2)
    publish, *deliveries = sink.spans
    assert [publish[2], *publish[3]] == traces
    assert sorted([one[2], *one[3]] for one in deliveries) == [traces[:2], traces[2:]]


async def test_messages_of_non_reliable_topics_are_traced(client, sink):
    await client.create(reliable=False)
    consumer = await client.subscribe()
    await client.publish(await client.producer(), [b"x"], attributes=[ONE.attributes()])
    await consumer.wait_for(1)
    assert [one[0].split()[0] for one in sink.spans] == ["publish", "deliver"]


def test_of_a_large_batch_only_the_first_rows_and_some_traces_count() -> None:
    attributes = [context(number).attributes() for number in range(2_000)]
    found = contexts_of(Batch.open(memoryview(encode([b"x"] * 2_000, attributes=attributes, publish_times=1))))
    assert found == [context(number) for number in range(LINKS_MAX + 1)]
    late = [{} for _ in range(1_000)] + attributes
    assert contexts_of(Batch.open(memoryview(encode([b"x"] * 3_000, attributes=late, publish_times=1)))) == []


def test_a_compressed_batch_is_read_unless_it_is_large() -> None:
    for size, expected in ((1_000, [ONE]), (2 << 20, [])):
        batch = encode([b"x" * size], attributes=[ONE.attributes()], publish_times=1, codec=Codec.ZSTD)
        assert contexts_of(Batch.open(memoryview(batch))) == expected


def test_spans_per_second_are_limited() -> None:
    clock, sink = ManualClock(), Sink()
    tracer = BatchTracer(sink, clock)
    view = memoryview(encode([b"x"], attributes=[ONE.attributes()], publish_times=1))
    for _ in range(SPANS_PER_S + 10):
        tracer.published("/default/a", view)
    assert (len(sink.spans), tracer.left_out) == (SPANS_PER_S, 10)
    clock.advance(1)
    tracer.published("/default/a", view)
    assert len(sink.spans) == SPANS_PER_S + 1


# -- producers ---------------------------------------------------------------------------------------------------------


def span_of(context: TraceContext) -> Any:
    state = trace.TraceState.from_header([context.state])
    found = trace.SpanContext(context.trace_id, context.span_id, False, trace.TraceFlags(context.flags), state)
    return trace.use_span(trace.NonRecordingSpan(found))


async def test_the_current_span_travels_with_every_message() -> None:
    own = context(7).attributes()
    many = {f"a{number}": "x" for number in range(ATTRIBUTES_PER_MESSAGE_MAX)}
    async with testing.broker() as url, connect(url) as client, client.producer("/default/orders") as producer:
        with span_of(ONE):
            await producer.send(b"send")
            await producer.send(b"send", attributes={"a": "b"})
            await producer.send(b"send", attributes=own)
            await producer.send(b"send", attributes=many)
            producer.send_nowait(b"nowait")
            await producer.flush()
            await producer.send_many([b"many"] * 2)
            await producer.send_many([b"many"] * 2, attributes=[{"a": "b"}, None])
        producer.send_nowait(b"without")
        await producer.flush()
        await producer.send_many([b"without"])
        found = []
        async with client.consumer("/default/orders", subscription="s", start="earliest") as consumer:
            while len(found) < 11:
                found.append((await consumer.receive(timeout=60)).attributes)
    traced = ONE.attributes()
    both = {"a": "b", **traced}
    assert found == [traced, both, own, many, traced, traced, traced, both, traced, {}, {}]
    read = trace.get_current_span(TraceContextTextMapPropagator().extract(found[0])).get_span_context()
    assert (read.trace_id, read.span_id, read.trace_state.to_header()) == (ONE.trace_id, ONE.span_id, ONE.state)


def test_the_span_of_a_thread_that_uses_the_blocking_client_travels_too() -> None:
    with testing.broker_thread() as url, connect_blocking(url) as client:
        with client.producer("/default/orders") as producer, span_of(ONE):
            producer.send(b"one")
        with client.consumer("/default/orders", subscription="s", start="earliest") as consumer:
            assert consumer.receive(timeout=60).attributes == ONE.attributes()


def test_a_client_does_not_import_opentelemetry() -> None:
    program = """
import asyncio, sys
from pydanube import connect, testing
async def main():
    async with testing.broker(grpc_data=False, grpc_admin=False) as url, connect(url) as client:
        async with client.producer("/default/a") as producer:
            await producer.send(b"x")
asyncio.run(main())
assert not [one for one in sys.modules if one.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# -- export ------------------------------------------------------------------------------------------------------------


async def test_spans_reach_a_collector() -> None:
    with open_collector() as collector:
        async with (
            testing.broker(tracing_endpoint=collector.url, tracing_service="orders-broker") as url,
            connect(url) as client,
            client.producer("/default/orders") as producer,
        ):
            with span_of(ONE):
                await producer.send(b"one")
            async with client.consumer("/default/orders", subscription="s", start="earliest") as consumer:
                await consumer.ack(await consumer.receive(timeout=60))
        found = collector.wait_for(2)  # the broker has closed, and exported them before
    assert collector.resources[0]["service.name"] == "orders-broker"
    by_name = {one.name: one for one in found}
    assert set(by_name) == {"publish /default/orders", "deliver /default/orders"}
    for one in found:
        assert one.trace_id == ONE.trace_id.to_bytes(16, "big")
        assert one.parent_span_id == ONE.span_id.to_bytes(8, "big")
        assert one.start_time_unix_nano <= one.end_time_unix_nano


async def test_producers_and_consumers_do_not_wait_for_a_collector_that_cannot_be_reached() -> None:
    async with (
        testing.broker(tracing_endpoint="http://127.0.0.1:9/v1/traces") as url,
        connect(url) as client,
        client.producer("/default/orders") as producer,
    ):
        with span_of(ONE):
            await producer.send(b"one")
        async with client.consumer("/default/orders", subscription="s", start="earliest") as consumer:
            assert (await consumer.receive(timeout=60)).payload == b"one"


async def test_a_broker_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Refused, match=r"pip install 'pydanube\[otel\]'"):
        async with testing.broker(tracing_endpoint="http://127.0.0.1:9/v1/traces"):
            pass
