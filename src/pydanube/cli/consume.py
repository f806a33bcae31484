"""`danube consume`: messages to stdout, through a subscription or without one.

A message is acked after it was written; what could not be written (the reader of a pipe went away) is not acked and
comes again. Ctrl-C ends it in order: acks are flushed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import click
import msgspec

from pydanube.model.errors import NotFound
from pydanube.model.names import TopicName
from pydanube.model.positions import LATEST, Position, datetime_from_micros
from pydanube.model.topics import SubscriptionDescription

from .options import POSITION, SUBSCRIPTION, SUBSCRIPTION_TYPE, TOPIC, examples, url_option
from .output import fail, note, payload_json, payload_text
from .session import LEAVE_SECONDS, Stop, with_client

if TYPE_CHECKING:
    from pydanube.client import Client, Consumer, Reader, ReceivedBatch


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    topic: TopicName
    subscription: str | None
    type: str | None
    """None: the subscription's own, or exclusive."""
    start: Position | None
    count: int | None
    as_json: bool
    timeout: float | None
    ack: bool
    name: str | None = None
    priority: int = 0
    key_filters: tuple[str, ...] = ()


@click.command(
    epilog=examples(
        """
danube consume /default/hello --from earliest --count 1
danube consume /default/orders -s billing                   resumes where 'billing' stopped
danube consume /default/orders --from 2026-01-31T12:00:00Z --json | jq .payload
danube consume /default/orders --from earliest --timeout 2  what is there, then stop
danube consume /default/orders -s debug --no-ack            look, and leave everything to come again
danube consume /default/orders -s workers --type shared     run several: each gets a part
danube consume /default/orders -s hot --type failover --name standby --priority 2
danube consume /default/orders -s eu --type key-shared --key-filter 'eu-*' --key-filter 'uk-*'
"""
    )
)
@click.argument("topic", type=TOPIC)
@click.option("-s", "--subscription", type=SUBSCRIPTION, help="Through this subscription.  [default: read without one]")
@click.option(
    "--type", "type_", type=SUBSCRIPTION_TYPE, help="Of the subscription.  [default: as it is; a new one: exclusive]"
)
@click.option("--name", metavar="NAME", help="Of this consumer; the same name takes over.  [default: a new one]")
@click.option(
    "--priority",
    type=click.IntRange(min=0, max=2**31 - 1),
    help="Of failover consumers the lowest is active.  [default: 0]",
)
@click.option(
    "--key-filter", "key_filters", metavar="GLOB", multiple=True, help="key-shared: only such keys; may be repeated."
)
@click.option("--from", "start", type=POSITION, help="earliest, latest, an offset, a time, or -10m.  [default: latest]")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with everything about the message.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop when nothing came for so many seconds.")
@click.option("--no-ack", is_flag=True, help="Do not confirm what was received.")
@url_option
def consume(
    topic: TopicName,
    subscription: str | None,
    type_: str | None,
    start: Position | None,
    count: int | None,
    as_json: bool,
    timeout: float | None,
    no_ack: bool,
    name: str | None,
    priority: int | None,
    key_filters: tuple[str, ...],
    url: str,
) -> None:
    """Receive messages from a topic.

    Prints payloads as lines of text; --json adds key, attributes, offset and times, and keeps binary payloads whole
    (payload_encoding base64). With -s messages are acked and the subscription remembers its place; --from counts only
    when that creates the subscription. Without -s nothing is remembered. A time without a zone is UTC.
    """
    if subscription is None and (type_ or no_ack or name or priority is not None or key_filters):
        raise click.UsageError(
            "--type, --name, --priority, --key-filter and --no-ack are about a subscription: name it with -s"
        )
    if priority is not None and type_ != "failover":
        raise click.UsageError("--priority is of failover consumers: add --type failover")
    if key_filters and type_ != "key-shared":
        raise click.UsageError("--key-filter is of key-shared consumers: add --type key-shared")
    wanted = Wanted(
        topic,
        subscription,
        type_,
        start,
        count,
        as_json,
        timeout,
        not no_ack,
        name,
        priority or 0,
        key_filters,
    )
    received = with_client(url, lambda client: _consume(client, wanted))
    if count is not None and received < count and timeout is not None:
        fail(f"received {received} of {count} messages: nothing more came for {timeout:g} s")


async def _consume(client: Client, wanted: Wanted) -> int:
    stop = Stop()
    printer = Printer(wanted)
    async with _source(client, wanted, await _existing(client, wanted)) as source:
        while not stop.asked and not printer.full:
            batch = await _next_batch(source, stop, wanted.timeout)
            if batch is None:
                break
            printed = printer.show(batch)
            if wanted.ack and not isinstance(source, AllPartitions):
                await source.ack(printed)
    return printer.printed


async def _next_batch(source: Consumer | AllPartitions, stop: Stop, timeout: float | None) -> ReceivedBatch | None:
    """None when the stop or the timeout came first. A partition that was opened counts as something that came."""
    while isinstance(source, AllPartitions) and source.opening and not source.arrived:
        if await stop.first(source.open_next(), timeout) is None:
            return None
    return await stop.first(source.receive_batch(), timeout)


async def _existing(client: Client, wanted: Wanted) -> SubscriptionDescription | None:
    """The subscription, where it is there already: --from means nothing then, and its type is known."""
    if wanted.subscription is None:
        return None
    try:
        return await client.describe_subscription(str(wanted.topic), wanted.subscription)
    except NotFound:
        return None


def _source(client: Client, wanted: Wanted, existing: SubscriptionDescription | None) -> Consumer | AllPartitions:
    if existing is not None and wanted.start is not None:
        how = f"'danube subscriptions seek {wanted.topic} {wanted.subscription} {wanted.start}' moves it"
        note(f"--from is ignored because the subscription {wanted.subscription} exists; {how}")
    elif wanted.start is None and existing is None and sys.stderr.isatty():
        note("waiting for new messages; --from earliest shows what is stored; Ctrl-C ends")
    start = wanted.start or LATEST
    if wanted.subscription is None:
        return AllPartitions(client, str(wanted.topic), start)
    return client.consumer(
        str(wanted.topic),
        subscription=wanted.subscription,
        type=wanted.type or (str(existing.type) if existing is not None else "exclusive"),
        start=start,
        name=wanted.name,
        priority=wanted.priority,
        key_filters=wanted.key_filters,
    )


class AllPartitions:
    """Readers of every partition of a topic, opened one after the other and taken from as batches arrive."""

    def __init__(self, client: Client, topic: str, start: Position) -> None:
        self._client, self._topic, self._start = client, topic, start
        self._stack = AsyncExitStack()
        self._unopened: deque[int] = deque()
        self._waiting: dict[asyncio.Task[ReceivedBatch], Reader] = {}
        self._done: asyncio.Queue[asyncio.Task[ReceivedBatch]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        description = await self._client.describe_topic(self._topic)
        self._unopened.extend(partition.index for partition in description.partitions)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Readers hold nothing that could be lost: one that does not end in time is left behind."""
        for task in self._waiting:
            task.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=LEAVE_SECONDS)
        closing = asyncio.get_running_loop().create_task(self._stack.aclose())
        await asyncio.wait({closing}, timeout=LEAVE_SECONDS)

    @property
    def opening(self) -> bool:
        return bool(self._unopened)

    @property
    def arrived(self) -> bool:
        return not self._done.empty()

    async def open_next(self) -> bool:
        """Open one more partition; cancelled, it is not open."""
        reader = self._client.reader(self._topic, partition=self._unopened[0], start=self._start)
        self._ask(await self._stack.enter_async_context(reader))
        self._unopened.popleft()
        return True

    async def receive_batch(self) -> ReceivedBatch:
        """Cancelled, nothing is lost: what arrived stays for the next call."""
        task = await self._done.get()
        self._ask(self._waiting.pop(task))
        return task.result()

    def _ask(self, reader: Reader) -> None:
        task = asyncio.get_running_loop().create_task(reader.receive_batch())
        task.add_done_callback(self._done.put_nowait)
        self._waiting[task] = reader


class Printer:
    """Writes messages to stdout, up to a count."""

    def __init__(self, wanted: Wanted) -> None:
        self._left = wanted.count
        self._terminal = sys.stdout.isatty()
        self._lines = self._as_json if wanted.as_json else self._as_text
        self._encode = msgspec.json.Encoder().encode
        self.printed = 0

    @property
    def full(self) -> bool:
        return self._left == 0

    def show(self, batch: ReceivedBatch) -> ReceivedBatch:
        """Write it out; returns the part of it that was wanted."""
        if self._left is not None and len(batch) > self._left:
            batch = batch.part(0, self._left)
        sys.stdout.buffer.write(b"".join(self._lines(batch)))
        sys.stdout.buffer.flush()
        self.printed += len(batch)
        if self._left is not None:
            self._left -= len(batch)
        return batch

    def _as_text(self, batch: ReceivedBatch) -> Iterator[bytes]:
        for payload in batch.payloads:
            yield f"{payload_text(payload, terminal=self._terminal)}\n".encode()

    def _as_json(self, batch: ReceivedBatch) -> Iterator[bytes]:
        """From columns: what is the same for the whole batch is converted once."""
        append_time, producer = batch.append_time.isoformat(), batch.producer
        times: dict[int, str] = {}
        columns = (
            batch.offsets.tolist(),
            batch.keys,
            batch.payloads,
            batch.attributes,
            batch.publish_times_us.tolist(),
        )
        for *row, redeliveries, reason in zip(*columns, batch.redeliveries, batch.failure_reasons, strict=True):
            offset, key, content, attributes, micros = row
            if micros not in times:
                times[micros] = datetime_from_micros(micros).isoformat()
            payload, encoding = payload_json(content)
            yield (
                self._encode(
                    {
                        "topic": batch.topic,
                        "partition": batch.partition,
                        "offset": offset,
                        "key": key,
                        "payload": payload,
                        "payload_encoding": encoding,
                        "attributes": attributes,
                        "publish_time": times[micros],
                        "append_time": append_time,
                        "producer": producer,
                        "redeliveries": redeliveries,
                        "failure_reason": reason,
                    }
                )
                + b"\n"
            )
