"""The spans in which handlers run."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pydanube


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that a program with OpenTelemetry exports. A provider can be set only once in a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


async def test_a_handler_continues_the_trace_of_its_message_and_hands_it_on(
    client: pydanube.Client, spans: InMemorySpanExporter
) -> None:
    app = pydanube.App()

    @app.subscriber("/shop/orders", subscription="billing", publish_to="/shop/invoices")
    async def bill(order: bytes) -> bytes:
        return b"invoice for " + order

    @app.subscriber("/shop/invoices", subscription="mail", publish_to="/shop/sent")
    async def mail(invoice: bytes) -> bytes:
        return invoice

    async with (
        app.running(client.url) as inside,
        inside.consumer("/shop/sent", subscription="look", create_topic=True) as sent,
        inside.producer("/shop/orders") as producer,
    ):
        await producer.send(b"nobody follows this one")
        assert (await sent.receive(timeout=60)).attributes == {}
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            await producer.send(b"tea")
        message = await sent.receive(timeout=60)
        assert message.payload == b"invoice for tea"
    found = {span.name: span for span in spans.get_finished_spans()}
    checkout, bill_span, mail_span = found["checkout"], found["process /shop/orders"], found["process /shop/invoices"]
    assert len(spans.get_finished_spans()) == 3
    assert {span.context.trace_id for span in found.values()} == {checkout.context.trace_id}
    assert (parent_of(bill_span), parent_of(mail_span)) == (checkout.context.span_id, bill_span.context.span_id)
    assert message.attributes["traceparent"].split("-")[2] == f"{mail_span.context.span_id:016x}"
    assert bill_span.attributes is not None
    assert bill_span.attributes["messaging.destination.subscription.name"] == "billing"


async def test_the_span_of_a_batch_is_linked_to_its_other_traces(
    client: pydanube.Client, spans: InMemorySpanExporter
) -> None:
    app, seen = pydanube.App(), []

    @app.subscriber("/shop/orders", subscription="billing", start="earliest", publish_to="/shop/counted")
    async def count(orders: list[bytes]) -> bytes:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return str(len(orders)).encode()

    contexts = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 41)]
    async with client.producer("/shop/orders") as producer:
        await producer.send_many([b"x"] * 40, attributes=[{"traceparent": one} for one in contexts])
    async with (
        client.consumer("/shop/counted", subscription="look", create_topic=True) as counted,
        app.running(client.url),
    ):
        assert (await counted.receive(timeout=60)).payload == b"40"
    (span,) = spans.get_finished_spans()
    assert seen == [1] == [span.context.trace_id]
    assert [link.context.trace_id for link in span.links] == [*range(2, 18)]


async def test_a_failure_is_recorded_in_the_span(client: pydanube.Client, spans: InMemorySpanExporter) -> None:
    app = pydanube.App()

    @app.subscriber(
        "/shop/orders", subscription="billing", publish_to="/shop/served", retries=pydanube.Retries(3, backoff="10ms")
    )
    async def brew(order: bytes, message: pydanube.Message[bytes]) -> bytes:
        if not message.redeliveries:
            raise OSError("out of beans")
        return order

    async with (
        app.running(client.url) as inside,
        inside.consumer("/shop/served", subscription="look", create_topic=True) as served,
        inside.producer("/shop/orders") as producer,
    ):
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            await producer.send(b"tea")
        await served.receive(timeout=60)
    _, failed, done = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert (failed.status.is_ok, done.status.is_ok) == (False, True)
    assert [event.name for event in failed.events] == ["exception"]
