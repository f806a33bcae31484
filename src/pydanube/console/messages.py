"""The message browser: pages of a partition, or a search by key and text that says which range it has looked at."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from . import words
from .rest import RestApi, topic_path
from .view import View

PAGE: Final = 50
SEARCH_AT_ONCE: Final = 500
SEARCHED_MAX: Final = 10_000
"""Messages that one search looks at; a click goes on behind them."""


@dataclass(slots=True)
class Search:
    """What a search found, and the range of offsets that it has looked at."""

    start: int | None = None
    next: int = 0
    end: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)


async def browse(view: View) -> Response:
    rest, topic = view.rest, view.topic
    described = await rest.get(topic_path(topic))
    partitions = described["partitions"]
    partition = int(view.query("partition", "0")) if view.query("partition", "0").isdecimal() else 0
    key, text = view.query("key"), view.query("text")
    start = view.query("start") or _newest(partitions, partition)
    (part,) = await view.parts(search(rest, topic, partition, start, key, text))
    return view.page(
        "messages.html",
        topic=topic,
        partitions=partitions,
        partition=partition,
        start=view.query("start"),
        key=key,
        text=text,
        live=view.query("live"),
        part=part,
        page=PAGE,
        as_command=lambda message: as_command(topic, message),
        as_python=lambda message: as_python(topic, message),
    )


def _newest(partitions: list[dict[str, Any]], partition: int) -> str:
    """Return where the last page of a partition begins, or its first message if that is not known."""
    for one in partitions:
        if one["index"] == partition:
            return str(max(one["start_offset"], one["end_offset"] - PAGE))
    return "earliest"


async def search(rest: RestApi, topic: str, partition: int, start: str, key: str, text: str) -> Search:
    """Read from `start` on until a page is full, the end is reached or SEARCHED_MAX messages were looked at."""
    found, looked_at = Search(), 0
    at_once = SEARCH_AT_ONCE if key or text else PAGE
    while len(found.found) < PAGE and looked_at < SEARCHED_MAX:
        page = await rest.get(
            topic_path(topic, "/messages"), partition=partition, start=start, limit=at_once, payload="text"
        )
        messages = page["messages"]
        if found.start is None:
            found.start = messages[0]["offset"] if messages else page["next"]
        found.next, found.end = page["next"], page["end"]
        looked_at += len(messages)
        matching = [one for one in messages if matches(one, key, text)]
        room = PAGE - len(found.found)
        found.found += matching[:room]
        if len(matching) > room:
            found.next = matching[room]["offset"]
        if found.next >= found.end or not messages or not (key or text):
            break
        start = str(found.next)
    return found


def matches(message: dict[str, Any], key: str, text: str) -> bool:
    """Whether a message has this key, and this text in its payload or attributes."""
    if key and message["key"] != key:
        return False
    return (
        not text
        or text in words.payload(message)
        or text in str(message.get("payload", ""))
        or any(text in name or text in value for name, value in message["attributes"].items())
    )


def as_command(topic: str, message: dict[str, Any]) -> str:
    """The command that shows this message."""
    return f"danube consume {shlex.quote(topic)} --from {message['offset']} --count 1 --json"


def as_python(topic: str, message: dict[str, Any]) -> str:
    """The lines of Python that read this message."""
    return (
        f"with pydanube.connect_blocking() as client, client.reader({topic!r}, partition={message['partition']}, "
        f"start={message['offset']}) as reader:\n    message = next(iter(reader))"
    )
