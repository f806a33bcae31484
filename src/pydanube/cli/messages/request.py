"""`danube request` asks a question and prints the reply; `danube reply` answers the questions of a topic."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.connecting import Stop, with_client
from pydanube.cli.options import ATTRIBUTE, DURATION, SUBSCRIPTION, TOPIC, examples, url_option
from pydanube.cli.output import fail, note, payload_json, payload_text, to_json
from pydanube.cli.standard_streams import is_terminal, need_stdout
from pydanube.cli.synonyms import Command
from pydanube.model.errors import RequestFailed
from pydanube.model.limits import MESSAGE_BYTES_MAX, REPLIES_MAX
from pydanube.model.names import TopicName

if TYPE_CHECKING:
    from pydanube.client import Client, Message
    from pydanube.client.replies import Reply

TIMEOUT_SECONDS: Final = 10.0
SUBSCRIPTION_NAME: Final = "replies"
"""As for `pydanube.App.reply`: the command shares the requests with the workers of an app."""


@click.command(
    cls=Command,
    epilog=examples(
        """
danube request /default/quotes -m '{"drink": "tea"}'
echo '{"drink": "tea"}' | danube request /default/quotes --timeout 2
danube request /default/status -m '' --replies 10 --timeout 1     from all that answer within a second
danube request /default/quotes -m '{}' --json | jq -r .payload
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("-m", "--message", help="The request.  [default: stdin, without the newline at its end]")
@click.option("-k", "--key", help="Routing key: chooses the partition, and the key-shared consumer.")
@click.option("-a", "--attribute", "attributes", type=ATTRIBUTE, multiple=True, help="NAME=VALUE; may be repeated.")
@click.option(
    "--timeout", type=DURATION, default=TIMEOUT_SECONDS, show_default=True, metavar="S", help="How long to wait."
)
@click.option(
    "--replies",
    type=click.IntRange(1, REPLIES_MAX),
    metavar="N",
    help="Wait for up to N replies, of several subscriptions.  [default: the first reply is all]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a reply, with attributes and errors.")
@click.option("--raw", is_flag=True, help="Exactly the bytes of the reply.")
@url_option
def request(
    url: str,
    topic: TopicName,
    message: str | None,
    key: str | None,
    attributes: Iterable[tuple[str, str]],
    timeout: float,
    replies: int | None,
    as_json: bool,
    raw: bool,
) -> None:
    """Ask the consumers of a topic, and print the reply.

    The request is a message of the topic; 'danube reply' or a service answers it (docs/request-reply.md). Exit code 1
    if nobody answered in time, or the answer is an error.
    """
    if as_json and raw:
        raise click.UsageError("--json and --raw exclude each other")
    need_stdout()
    payload = _stdin() if message is None else message.encode()
    chosen: dict[str, Any] = {"timeout": timeout, "key": key, "attributes": dict(attributes)}
    if replies is None:
        found = [with_client(url, lambda client: _ask(client, str(topic), payload, chosen))]
    else:
        found = with_client(url, lambda client: client.gather(str(topic), payload, replies_max=replies, **chosen))
        if not found:
            fail(f"no reply from {topic} within {timeout:g} s")
    for reply in found:
        _print(reply, as_json, raw)
    if all(reply.error is not None for reply in found):
        raise click.exceptions.Exit(1)


def _stdin() -> bytes:
    if sys.stdin is None:
        raise click.UsageError("there is no stdin: give the request with -m")
    if is_terminal(sys.stdin):
        note("reading the request from the terminal; Ctrl-D ends it")
    payload = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 2)
    return payload.removesuffix(b"\n").removesuffix(b"\r")


async def _ask(client: Client, topic: str, payload: bytes, chosen: Mapping[str, Any]) -> Reply[bytes]:
    from pydanube.client.replies import Reply

    try:
        answer: Reply[bytes] = await client.request(topic, payload, **chosen)
    except RequestFailed as error:
        return Reply(b"", error=error)
    except TimeoutError as error:
        fail(str(error))
    return answer


def _print(reply: Reply[bytes], as_json: bool, raw: bool) -> None:
    error = reply.error
    if as_json:
        text, encoding = payload_json(reply.payload)
        told = None if error is None else {"kind": error.kind, "message": error.message}
        shown = {"payload": text, "payload_encoding": encoding, "attributes": reply.attributes, "error": told}
        click.echo(to_json(shown, compact=True))
    elif error is not None:
        note(f"the responder failed: {f'{error.kind}: ' if error.kind else ''}{error.message}")
    elif raw:
        sys.stdout.buffer.write(reply.payload)
    else:
        click.echo(payload_text(reply.payload, terminal=is_terminal(sys.stdout)))


@click.command(
    cls=Command,
    epilog=examples(
        """
danube reply /default/hello -m 'hello, whoever you are'
danube reply /default/echo --echo
danube reply /default/quotes --command 'jq -c {cents:250}'        each request is its stdin
danube reply /default/quotes --command ./quote.sh -s replies      shares the requests with all others of this name
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("-m", "--message", help="Answer each request with this text.")
@click.option("--echo", is_flag=True, help="Answer each request with itself.")
@click.option("--command", metavar="CMD", help="Answer with what this program prints; no shell is between.")
@click.option(
    "-s", "--subscription", type=SUBSCRIPTION, default=SUBSCRIPTION_NAME, show_default=True, help="All of it share."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many requests.")
@url_option
def reply(
    url: str,
    topic: TopicName,
    message: str | None,
    echo: bool,
    command: str | None,
    subscription: str,
    count: int | None,
) -> None:
    """Answer the requests of a topic, one after the other, and print them.

    A topic that does not exist is created as one that is not reliable. A command that ends with another exit code than
    0 answers with an error: the last line that it wrote to stderr. Ctrl-C is the usual end: exit code 0.
    """
    if sum((message is not None, echo, command is not None)) != 1:
        raise click.UsageError("say what to answer, by one of -m, --echo and --command")
    try:
        words = shlex.split(command) if command is not None else []
    except ValueError as error:
        raise click.UsageError(f"--command {command!r} cannot be read: {str(error).lower()}") from None
    if command is not None and not words:
        raise click.UsageError("--command names no program")
    need_stdout()
    answer = None if message is None else message.encode()
    with_client(url, lambda client: _answer_all(client, str(topic), subscription, count, answer, words))


async def _answer_all(
    client: Client, topic: str, subscription: str, count: int | None, answer: bytes | None, command: list[str]
) -> None:
    from pydanube.app.responders import caller_has_left, create_topic_of_requests
    from pydanube.runtime.clock import SystemClock

    stop, clock, answered = Stop(), SystemClock(), 0
    await create_topic_of_requests(client, topic)
    async with client.consumer(topic, subscription=subscription, type="shared") as consumer:
        note(f"answering requests to {topic}; Ctrl-C ends")
        while not stop.asked and answered != count:
            message = await stop.first(consumer.receive())
            if message is None:
                return
            if not message.is_request:
                note(f"message {message.partition}:{message.offset} is no request: nobody waits for an answer")
            elif not caller_has_left(message, clock):
                terminal = is_terminal(sys.stdout)
                sys.stdout.buffer.write(payload_text(message.payload, terminal=terminal).encode() + b"\n")
                sys.stdout.buffer.flush()
                if command:
                    await _run(command, message, consumer)
                else:
                    await consumer.respond(message, message.payload if answer is None else answer)
                answered += 1
            await consumer.ack(message)


async def _run(command: list[str], message: Message[bytes], consumer: Any) -> None:
    """Answer with what the command prints, or with its last words if it fails."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        reason = f"{command[0]} cannot be run: {(error.strerror or str(error)).lower()}"
        await consumer.respond_error(message, reason)
        fail(reason)
    try:
        printed, told = await process.communicate(message.payload)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode == 0:
        await consumer.respond(message, printed.removesuffix(b"\n"))
        return
    lines = told.decode(errors="backslashreplace").strip().splitlines()
    reason = lines[-1] if lines else f"exit code {process.returncode}"
    note(f"{command[0]} failed: {reason}")
    await consumer.respond_error(message, reason, kind=command[0])
