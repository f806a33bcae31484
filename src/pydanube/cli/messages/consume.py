"""`danube consume`: prints messages to stdout, from a subscription or without one.

A message is acked after it was written. If it could not be written (the reader closed the pipe), it is not acked and is
redelivered. On Ctrl-C the acks are flushed first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import click
import msgspec

from pydanube.cli import values
from pydanube.cli.connecting import Stop, with_client
from pydanube.cli.messages.format_strings import MessageFormat, escaped
from pydanube.cli.messages.reading import AllPartitions, BacklogEnd, Bounds, is_pattern, topics_of
from pydanube.cli.messages.schema_payloads import DecodedBatch, PayloadDecoder
from pydanube.cli.options import (
    DELIMITER,
    DURATION,
    POSITION,
    SUBSCRIPTION,
    SUBSCRIPTION_TYPE,
    Parsed,
    Topic,
    examples,
    url_option,
)
from pydanube.cli.output import fail, note, payload_json, payload_text
from pydanube.cli.standard_streams import is_terminal, need_stdout
from pydanube.cli.synonyms import Command
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, LATEST, Position, datetime_from_micros
from pydanube.model.topics import SubscriptionDescription, SubscriptionTypeName

if TYPE_CHECKING:
    from pydanube.client import Client, Consumer, ReceivedBatch


def _topics(text: str) -> str:
    """Check a topic name or a pattern and return it."""
    if not is_pattern(text):
        return str(TopicName.parse(text))
    if text.count("/") != 2 or not text.startswith("/"):
        raise Invalid(f"pattern {text!r} is not of full names: write it as '/namespace/topic-*'")
    return text


def _start(text: str) -> Position:
    """Parse the position of --from; a negative number, which kcat and Spark count from the end, is --last here."""
    try:
        return values.position(text)
    except Invalid as error:
        if not (text[:1] == "-" and text[1:].isdecimal()):
            raise
        raise Invalid(f"{error.message}, or --last {text[1:]} for the last {text[1:]} messages") from None


TOPICS: Final = Topic("topic", _topics)
START: Final = Parsed("position", _start)
FORMAT: Final = Parsed("format", MessageFormat.parse)
PREFETCH_MESSAGES: Final = 10_000
END_POLL_SECONDS: Final = 0.25
"""With --exit and a subscription: after this time without a message, the broker is asked whether there is any left."""

Ended = Literal["enough", "end", "silence", "signal"]
"""Why consuming ended: --count is reached, the end of what was asked for is, --timeout passed, or a signal came."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of the command line."""

    topic: str
    """A topic name or a pattern."""
    subscription: str | None
    type_: str | None
    """None: the type of the existing subscription, or exclusive."""
    start: Position | None
    last: int | None
    until: Position | None
    stop_at_end: bool
    partitions: tuple[int, ...]
    count: int | None
    as_json: bool
    raw: bool
    decode: bool
    format_: MessageFormat | None
    delimiter: bytes | None
    timeout: float | None
    no_ack: bool
    nack: bool
    reason: str | None
    ack_timeout: float | None
    prefetch: int | None
    name: str | None
    priority: int | None
    key_filters: tuple[str, ...]

    def check(self) -> None:
        """Raise UsageError for options that exclude each other, before connecting."""
        of_subscription = {
            "--type": self.type_,
            "--name": self.name,
            "--priority": self.priority is not None,
            "--key-filter": self.key_filters,
            "--no-ack": self.no_ack,
            "--nack": self.nack,
            "--ack-timeout": self.ack_timeout is not None,
            "--prefetch": self.prefetch,
        }
        given = [name for name, value in of_subscription.items() if value]
        if self.subscription is None and given:
            raise click.UsageError(f"{given[0]} is about a subscription: name it with -s")
        without_subscription = {"--last": self.last, "--until": self.until, "--partition": self.partitions}
        given = [name for name, value in without_subscription.items() if value]
        if self.subscription is not None and given:
            raise click.UsageError(f"{given[0]} is for reading without a subscription: leave out -s")
        if self.nack and self.no_ack:
            raise click.UsageError("--nack and --no-ack exclude each other")
        if self.nack and self.stop_at_end:
            raise click.UsageError("--nack and --exit exclude each other: what is given back comes again")
        if self.reason is not None and not self.nack:
            raise click.UsageError("--reason is why a message is given back: add --nack")
        if self.start is not None and self.last is not None:
            raise click.UsageError("--from and --last exclude each other")
        self._check_until()
        self._check_output()
        self.check_type(self.type_)

    def _check_until(self) -> None:
        if self.until is None:
            return
        if self.until.kind == "earliest":
            raise click.UsageError("--until earliest leaves nothing to read: use latest, an offset or a time")
        if self.until.kind == "time":
            from pydanube.runtime.clock import SystemClock

            if self.until.value > SystemClock().now_us():
                raise click.UsageError(f"--until {self.until} is in the future: messages may still come before it")

    def _check_output(self) -> None:
        forms = {"--json": self.as_json, "--raw": self.raw, "--format": self.format_}
        given = [name for name, value in forms.items() if value]
        if len(given) > 1:
            raise click.UsageError(f"{given[0]} and {given[1]} exclude each other")
        if self.decode and self.raw:
            raise click.UsageError("--decode and --raw exclude each other: --raw writes payloads as they were sent")
        if self.delimiter is not None and given and given != ["--raw"]:
            raise click.UsageError(f"--delimiter is for text and --raw: {given[0]} says itself where a message ends")

    @property
    def bounds(self) -> Bounds:
        """What is read without a subscription. With an end and without a start, everything up to the end is read."""
        has_end = self.stop_at_end or self.until is not None
        start = self.start or (EARLIEST if has_end else LATEST)
        at_end = self.stop_at_end or (self.until is not None and self.until.kind == "latest")
        until = None if self.until == LATEST else self.until
        return Bounds(start, self.last, until, at_end, self.partitions)

    def check_type(self, type_: str | None, hint: str = "") -> None:
        """Raise UsageError for options that this subscription type does not have; None: the type is not known yet."""
        if self.priority is not None and type_ not in (None, "failover"):
            raise click.UsageError(f"--priority is of failover consumers, and the subscription is {type_}{hint}")
        if self.key_filters and type_ not in (None, "key-shared"):
            raise click.UsageError(f"--key-filter is of key-shared consumers, and the subscription is {type_}{hint}")


@click.command(
    cls=Command,
    epilog=examples(
        """
danube consume /default/hello --from earliest --count 1
danube consume /default/orders -s billing                   resumes where 'billing' stopped
danube consume /default/orders --from 2026-01-31T12:00:00Z --json | jq .payload
danube consume /default/orders -e                           what is there, then stop
danube consume /default/orders --last 5 -e -p 0             the last five of partition 0
danube consume /default/orders --from -1h --until -10m
danube consume /default/orders -e --format '%p:%o %T %k %s\\n'
danube consume /default/images --last 1 -e --raw > cat.jpg  exactly the bytes that were published
danube consume /default/orders -e --json | danube produce /default/copy --json-lines
danube consume /default/orders --last 5 -e --decode         Avro and Protobuf as JSON, by the schemas of the registry
danube consume /default/orders -s debug --no-ack            look, and leave everything to come again
danube consume /default/orders -s workers --type shared     run several: each gets a part
danube consume /default/orders -s hot --type failover --name standby --priority 2
danube consume /default/orders -s eu --type key-shared --key-filter 'eu-*' --key-filter 'uk-*'
danube consume '/default/orders-*' -s audit                 all that match, also those to come
danube consume /default/orders -s debug --count 1 --nack --reason 'no stock'   let one fail
"""
    ),
)
@click.argument("topic", type=TOPICS)
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
@click.option(
    "--from",
    "start",
    type=START,
    help="earliest, latest, an offset, a time, or -10m.  [default: latest; without -s and with an end: earliest]",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="From the last N messages of each partition on.")
@click.option(
    "--until", type=POSITION, help="Stop before this offset or time (as --from), in each partition; latest: as -e."
)
@click.option("-e", "--exit", "stop_at_end", is_flag=True, help="Stop at the end: when all that is stored now came.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this; may be repeated."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON with everything about the message; piped, one object a line.",
)
@click.option("--raw", is_flag=True, help="Exactly the bytes of the payloads, with nothing between them but -D.")
@click.option("--decode", is_flag=True, help="Payloads as JSON, by the schema of each; without one: as they are.")
@click.option("-f", "--format", "format_", type=FORMAT, help="Print each message like this; see above.")
@click.option(
    "-D", "--delimiter", type=DELIMITER, help=r"What follows each payload.  [default: \n; with --raw: nothing]"
)
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop when nothing came for this many seconds.")
@click.option("--no-ack", is_flag=True, help="Do not confirm what was received.")
@click.option("--nack", is_flag=True, help="Give back what was received: it fails, and comes again or dies.")
@click.option("--reason", metavar="TEXT", help="With --nack: why.")
@click.option("--ack-timeout", type=DURATION, metavar="S", help="Of this consumer.  [default: the failure policy's]")
@click.option(
    "--prefetch", type=click.IntRange(1, 2**31 - 1), help=f"Messages sent ahead.  [default: {PREFETCH_MESSAGES}]"
)
@url_option
def consume(url: str, **given: Any) -> None:
    """Receive messages from a topic.

    TOPIC may be a pattern such as '/default/orders-*', for all topics that match. Prints payloads as lines of text, in
    which bytes that are no text are escaped; --json adds key, attributes, offset and times, and keeps binary payloads
    whole (payload_encoding base64); --raw writes the bytes as they are. With -s messages are acked and the subscription
    remembers its place; --from counts only when that creates the subscription. Without -s nothing is remembered. A time
    without a zone is UTC. Ctrl-C is the usual end: exit code 0.

    --decode prints payloads that were published with a schema ('danube schemas') as JSON, one a line. With --json the
    payload is that value, payload_encoding is json, and subject names the schema; 'produce --json-lines --schema'
    publishes it again. A payload without a schema, or one that does not fit its schema, stays as it is; the latter is
    told on stderr.

    A --format is written as for kcat; it ends with a newline only if it says so:

    \b
      %s payload     %S bytes of the payload    %R the same, as a 32-bit big endian number
      %k key         %K bytes of the key, -1 without one
      %t topic       %p partition               %o offset
      %T publish time, ms since 1970            %h attributes, a=b,c=d
      %% a percent sign; in delimiters too: \\n \\r \\t \\0 \\\\ \\xNN
    """
    wanted = ConsumeOptions(**given)
    wanted.check()
    need_stdout()
    received, ended = with_client(url, lambda client: _consume(client, wanted))
    if ended == "silence" and wanted.count is not None:
        fail(f"received {received} of {wanted.count} messages: nothing more came for {wanted.timeout:g} s")


async def _consume(client: Client, wanted: ConsumeOptions) -> tuple[int, Ended]:
    """Print messages until the end; return how many, and why it ended."""
    stop = Stop()
    printer = Printer(wanted)
    decoder = PayloadDecoder(client) if wanted.decode else None
    async with _source(client, wanted, await _existing(client, wanted)) as source:
        end = None
        if wanted.subscription is not None and wanted.stop_at_end:
            end = await BacklogEnd.find(client, wanted.topic, wanted.subscription)
        if isinstance(source, AllPartitions) and source.finished and not wanted.partitions:
            note(f"no topic matches {wanted.topic}")
        while not stop.asked and not printer.full:
            batch = await _next_batch(source, stop, wanted.timeout, end)
            if batch is None:
                break
            printed = printer.cut(batch)
            printer.write(printed, None if decoder is None else await decoder.decode(printed))
            if end is not None:
                end.note(printed)
            if isinstance(source, AllPartitions) or wanted.no_ack:
                continue
            await (source.nack(printed, reason=wanted.reason or "") if wanted.nack else source.ack(printed))
        ended = "enough" if printer.full else _why(stop, source, end)
    return printer.printed, ended


def _why(stop: Stop, source: Consumer | AllPartitions, end: BacklogEnd | None) -> Ended:
    if stop.asked:
        return "signal"
    at_end = source.finished if isinstance(source, AllPartitions) else end is not None and end.reached
    return "end" if at_end else "silence"


async def _next_batch(
    source: Consumer | AllPartitions, stop: Stop, timeout: float | None, end: BacklogEnd | None = None
) -> ReceivedBatch | None:
    """Return the next batch; None if the end, the stop or the timeout came first.

    Opening a partition restarts the timeout.
    """
    while isinstance(source, AllPartitions) and source.opening and not source.arrived:
        if await stop.first(source.open_next(), timeout) is None:
            return None
    if end is None:
        return await stop.first(source.receive_batch(), timeout)
    assert not isinstance(source, AllPartitions)
    return await _next_before_end(source, stop, timeout, end)


async def _next_before_end(
    source: Consumer, stop: Stop, timeout: float | None, end: BacklogEnd
) -> ReceivedBatch | None:
    """Return the next batch of a consumer; None also if the end of its backlog is reached."""
    waited = 0.0
    while not end.reached and (timeout is None or waited < timeout):
        patience = END_POLL_SECONDS if timeout is None else min(END_POLL_SECONDS, timeout - waited)
        batch = await stop.first(source.receive_batch(), patience)
        if batch is not None or stop.asked:
            return batch
        if await stop.first(end.ask(), timeout):
            try:
                return await source.receive_batch(timeout=0)  # it may have come together with the answer
            except TimeoutError:
                end.reach()
        waited += patience
    return None


async def _existing(client: Client, wanted: ConsumeOptions) -> SubscriptionDescription | None:
    """Return the subscription if it exists; --from is ignored then, and the type is known."""
    for topic in await topics_of(client, wanted.topic):
        try:
            if wanted.subscription is not None:
                return await client.describe_subscription(topic, wanted.subscription)
        except NotFound:
            continue
    return None


def _source(
    client: Client, wanted: ConsumeOptions, existing: SubscriptionDescription | None
) -> Consumer | AllPartitions:
    if existing is not None and wanted.start is not None:
        how = f"'danube subscriptions seek {existing.topic} {wanted.subscription} {wanted.start}' moves it"
        note(f"--from is ignored because the subscription {wanted.subscription} exists; {how}")
    elif wanted.bounds.start == LATEST and wanted.last is None and existing is None and is_terminal(sys.stderr):
        note("waiting for new messages; --from earliest shows what is stored; Ctrl-C ends")
    if wanted.subscription is None:
        return AllPartitions(client, wanted.topic, wanted.bounds)
    if existing is None and wanted.start is None and wanted.stop_at_end:
        note(
            f"the subscription {wanted.subscription} is new and starts at the end; --from earliest takes what is stored"
        )
    kind = wanted.type_ or (str(existing.type) if existing is not None else "exclusive")
    wanted.check_type(kind, "" if existing is not None else ", as new ones are: add --type")
    return client.consumer(
        wanted.topic,
        subscription=wanted.subscription,
        type=cast(SubscriptionTypeName, kind),
        start=wanted.start or LATEST,
        name=wanted.name,
        priority=wanted.priority or 0,
        key_filters=wanted.key_filters,
        ack_timeout=wanted.ack_timeout,
        prefetch_messages=wanted.prefetch or PREFETCH_MESSAGES,
    )


class Printer:
    """Writes messages to stdout, at most `count`."""

    def __init__(self, wanted: ConsumeOptions) -> None:
        self._wanted = wanted
        self._left = wanted.count
        self._terminal = is_terminal(sys.stdout)
        self._delimiter = wanted.delimiter if wanted.delimiter is not None else b"" if wanted.raw else b"\n"
        self._encode = msgspec.json.Encoder().encode
        self.printed = 0

    @property
    def full(self) -> bool:
        return self._left == 0

    def cut(self, batch: ReceivedBatch) -> ReceivedBatch:
        """Return the part of a batch that is printed: what is left of the count."""
        return batch.part(0, self._left) if self._left is not None and len(batch) > self._left else batch

    def write(self, batch: ReceivedBatch, decoded: DecodedBatch | None = None) -> None:
        """Write the batch, which `cut` returned."""
        payloads: Sequence[bytes] = batch.payloads
        if decoded is not None:
            texts = zip(payloads, decoded.texts, strict=True)
            payloads = [payload if text is None else text for payload, text in texts]
        rows = self._as_json(batch, decoded) if self._wanted.as_json else self._rendered(batch, payloads)
        sys.stdout.buffer.write(b"".join(rows))
        sys.stdout.buffer.flush()
        self.printed += len(batch)
        if self._left is not None:
            self._left -= len(batch)

    def _rendered(self, batch: ReceivedBatch, payloads: Sequence[bytes]) -> Iterable[bytes]:
        """Return the output of a batch as text, as bytes or in a format."""
        if self._wanted.raw:
            return (payload + self._delimiter for payload in payloads)
        if self._wanted.format_ is None:
            return (payload_text(one, terminal=self._terminal).encode() + self._delimiter for one in payloads)
        rendered = self._wanted.format_.render(batch, payloads)
        return map(escaped, rendered) if self._terminal else rendered

    def _as_json(self, batch: ReceivedBatch, decoded: DecodedBatch | None) -> Iterator[bytes]:
        """Yield the JSON of each message, a line or on a terminal indented; values that repeat are converted once."""
        producer = batch.producer
        times: dict[int, str] = {}
        columns = (
            batch.offsets.tolist(),
            batch.keys,
            batch.payloads,
            batch.attributes,
            batch.publish_times_us.tolist(),
        )
        tries = zip(*columns, batch.redeliveries, batch.failure_reasons, strict=True)
        for place, (*row, redeliveries, reason) in enumerate(tries):
            offset, key, content, attributes, micros = row
            if micros not in times:
                times[micros] = datetime_from_micros(micros).isoformat()
            payload: str | msgspec.Raw
            payload, encoding = payload_json(content)
            subject = {}
            if decoded is not None:
                subject = {"subject": decoded.subjects[place]}
                if (text := decoded.texts[place]) is not None:
                    payload, encoding = msgspec.Raw(text), "json"
            due = batch.deliver_at_at(place)
            line = self._encode(
                {
                    "topic": batch.topic,
                    "partition": batch.partition,
                    "offset": offset,
                    "key": key,
                    "payload": payload,
                    "payload_encoding": encoding,
                    "attributes": attributes,
                    "publish_time": times[micros],
                    "append_time": batch.append_time_at(place).isoformat(),
                    "producer": producer,
                    "deliver_at": due.isoformat() if due is not None else None,
                    "redeliveries": redeliveries,
                    "failure_reason": reason,
                    "schema_id": batch.schema_id,
                    "schema_version": batch.schema_version,
                    **subject,
                }
            )
            yield (msgspec.json.format(line, indent=2) if self._terminal else line) + b"\n"
