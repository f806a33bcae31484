"""What changes something. Each act says in numbers what it will do, and asks for the name of what it destroys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from .rest import Refused, RestApi, subscription_path, topic_path
from .view import View
from .words import number, size, topic_address

Fields = dict[str, str]
"""What the form of an act has: the names of what it is about, and its settings."""


@dataclass(frozen=True, slots=True)
class Field:
    """An input of a form."""

    name: str
    label: str
    hint: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    title: str
    foretell: Callable[[RestApi, Fields], Awaitable[str]]
    """Returns what the act will do, in numbers."""
    do: Callable[[RestApi, Fields], Awaitable[str]]
    """Does it; returns what was done."""
    then: Callable[[Fields], str]
    """The page that is shown afterwards."""
    about: tuple[str, ...]
    """The fields that name what the act is about."""
    fields: tuple[Field, ...] = ()
    confirm: str = ""
    """The field whose value has to be typed, of acts that destroy something."""


async def show(view: View) -> Response:
    """The page of an act, before it is done."""
    act = _act(view)
    given = {name: view.query(name) for name in act.about} | {
        field.name: view.query(field.name, field.default) for field in act.fields
    }
    return await _page(view, act, given, "")


async def carry_out(view: View) -> Response:
    act = _act(view)
    given = {name: view.field(name) for name in (*act.about, *(field.name for field in act.fields))}
    if act.confirm and view.field("typed") != given[act.confirm]:
        return await _page(view, act, given, f"Type {given[act.confirm]} to confirm.", 422)
    try:
        done = await act.do(view.rest, given)
    except Refused as refused:
        if refused.status == 401:
            raise
        return await _page(view, act, given, str(refused), refused.status)
    return view.page("done.html", title=act.title, done=done, then=act.then(given))


def _act(view: View) -> Act:
    if (act := ACTS.get(view.path("act"))) is None:
        raise Refused(404, "NotFound", f"there is no act {view.path('act')!r}")
    return act


async def _page(view: View, act: Act, given: Fields, problem: str, status: int = 200) -> Response:
    (foretold,) = await view.parts(act.foretell(view.rest, given))
    return view.page("act.html", status, act=act, given=given, foretold=foretold, problem=problem, back=act.then(given))


# -- what will be done -------------------------------------------------------------------------------------------------


async def _backlog(rest: RestApi, given: Fields) -> int:
    described = await rest.get(subscription_path(given["topic"], given["subscription"]))
    return sum(one["lag"] for one in described["partitions"])


async def _foretell_seek(rest: RestApi, given: Fields) -> str:
    described = await rest.get(subscription_path(given["topic"], given["subscription"]))
    topic = await rest.get(topic_path(given["topic"]))
    again = skipped = 0
    for one in described["partitions"]:
        path = topic_path(given["topic"], f"/partitions/{one['partition']}/offset")
        target = (await rest.get(path, position=given["position"] or "earliest"))["offset"]
        again += max(0, one["position"] - target)
        skipped += max(0, target - one["position"])
    total = sum(one["end_offset"] - one["start_offset"] for one in topic["partitions"])
    if again:
        return f"About {number(again)} of {number(total)} messages will be delivered again."
    if skipped:
        return f"About {number(skipped)} messages will be skipped: they will not be delivered."
    return "The subscription stands there already; what was delivered and not acknowledged comes again."


async def _foretell_clear(rest: RestApi, given: Fields) -> str:
    return f"{number(await _backlog(rest, given))} messages will be acknowledged without being delivered."


async def _foretell_skip(rest: RestApi, given: Fields) -> str:
    return (
        f"Message {given['offset']} of partition {given['partition']} will be acknowledged and not delivered any more. "
        "It stays in the topic."
    )


async def _foretell_delete_subscription(rest: RestApi, given: Fields) -> str:
    return (
        f"Its position is forgotten, and with it a backlog of {number(await _backlog(rest, given))} messages. "
        "Consumers that are attached are closed. The messages stay in the topic."
    )


async def _foretell_delete_topic(rest: RestApi, given: Fields) -> str:
    described = await rest.get(topic_path(given["topic"]))
    messages = sum(one["end_offset"] - one["start_offset"] for one in described["partitions"])
    stored = sum(one["stored_bytes"] for one in described["partitions"])
    return (
        f"About {number(messages)} messages ({size(stored)}) in {len(described['partitions'])} partitions and "
        f"{len(described['subscriptions'])} subscriptions will be gone. This cannot be undone."
    )


async def _foretell_redrive(rest: RestApi, given: Fields) -> str:
    page = await rest.get(topic_path(given["topic"], "/dead-letters"), partition=given["partition"], limit=500)
    letters = [one for one in page["letters"] if given["offset"] in ("", str(one["message"]["offset"]))]
    by_topic: dict[str, int] = {}
    for one in letters:
        target = given["to"] or one["original_topic"] or "nowhere: its origin is not known, name a topic"
        by_topic[target] = by_topic.get(target, 0) + 1
    if not letters:
        return f"There is nothing to send back in partition {given['partition']}."
    more = " and those behind them" if page["next"] is not None and not given["offset"] else ""
    return "; ".join(f"{number(count)} to {target}" for target, count in by_topic.items()) + f"{more}."


async def _foretell_drop(rest: RestApi, given: Fields) -> str:
    return await _foretell_redrive(rest, given | {"to": "nobody: they are given up, and stay stored"})


async def _foretell_publish(rest: RestApi, given: Fields) -> str:
    try:
        schema = await rest.get(topic_path(given["topic"], "/schema"))
    except Refused:
        return "One message will be published."
    return f"One message will be published; the topic carries {schema['subject']}, policy {schema['policy']}."


async def _foretell_delete_version(rest: RestApi, given: Fields) -> str:
    version = await rest.get(f"/schemas/{given['subject']}/versions/{given['version']}")
    return f"Version {given['version']} of {given['subject']} will be deleted; its id is {version['schema_id']}."


async def _foretell_revoke(rest: RestApi, given: Fields) -> str:
    return f"Whoever uses the API key {given['key']} is signed out within a second."


async def _foretell_unbind(rest: RestApi, given: Fields) -> str:
    one = await rest.get(f"/access/bindings/{given['binding']}")
    return f"{one['subject']} will lose {', '.join(one['roles'])} on {one['resource']}."


def _whole(given: Fields, name: str) -> int:
    """Return a field that has to be a whole number, 0 if it is empty. Raises Refused."""
    if given[name] and not given[name].isdecimal():
        raise Refused(422, "Invalid", f"{name}={given[name]!r} is not a whole number")
    return int(given[name] or 0)


# -- doing it ----------------------------------------------------------------------------------------------------------


async def _seek(rest: RestApi, given: Fields) -> str:
    path = subscription_path(given["topic"], given["subscription"], "/seek")
    await rest.send("POST", path, {"position": given["position"]})
    return f"{given['subscription']} stands at {given['position']} now."


async def _clear(rest: RestApi, given: Fields) -> str:
    answer = await rest.send("POST", subscription_path(given["topic"], given["subscription"], "/clear"), {})
    return f"{number(answer['messages'])} messages were acknowledged."


async def _skip(rest: RestApi, given: Fields) -> str:
    offset = _whole(given, "offset")
    body = {"partition": _whole(given, "partition"), "ranges": [[offset, offset + 1]]}
    await rest.send("POST", subscription_path(given["topic"], given["subscription"], "/skip"), body)
    return f"Message {offset} was skipped."


async def _delete_subscription(rest: RestApi, given: Fields) -> str:
    await rest.send("DELETE", subscription_path(given["topic"], given["subscription"]))
    return f"Subscription {given['subscription']} was deleted."


async def _delete_topic(rest: RestApi, given: Fields) -> str:
    await rest.send("DELETE", topic_path(given["topic"]))
    return f"Topic {given['topic']} was deleted."


async def _letters(rest: RestApi, given: Fields, way: str, extra: dict[str, Any]) -> tuple[int, int]:
    """Do the steps of a redrive until there are no more; return how many letters went and how many stayed."""
    sent = stayed = start = 0
    while start >= 0:
        body = {"partition": _whole(given, "partition"), "start": start, **extra}
        if given["offset"]:
            body = {"partition": _whole(given, "partition"), "offsets": [_whole(given, "offset")], **extra}
        step = await rest.send("POST", topic_path(given["topic"], f"/dead-letters/{way}"), body)
        sent += step.get("done", 0)
        stayed += len(step.get("stayed", []))
        start = -1 if given["offset"] else step.get("next_offset", -1)
    return sent, stayed


async def _redrive(rest: RestApi, given: Fields) -> str:
    sent, stayed = await _letters(rest, given, "redrive", {"to": given["to"]} if given["to"] else {})
    return f"{number(sent)} letters were sent back" + (
        f", {number(stayed)} stayed: their topic did not take them." if stayed else "."
    )


async def _drop(rest: RestApi, given: Fields) -> str:
    sent, _ = await _letters(rest, given, "drop", {})
    return f"{number(sent)} letters were given up."


async def _publish(rest: RestApi, given: Fields) -> str:
    body = {"payload": given["payload"]} | ({"key": given["key"]} if given["key"] else {})
    answer = await rest.send("POST", topic_path(given["topic"], "/messages"), body)
    stored = answer["offsets"][0]
    return f"It is stored in partition {stored['partition']} at offset {stored['offset']}."


async def _create_topic(rest: RestApi, given: Fields) -> str:
    body: dict[str, Any] = {"partitions": _whole(given, "partitions"), "reliable": given["kind"] == "reliable"}
    made = await rest.send("PUT", topic_path(given["topic"]), body)
    return f"Topic {made['topic']} is there."


async def _foretell_create_topic(rest: RestApi, given: Fields) -> str:
    return "A topic without partitions keeps all of its messages in order; more partitions share the work."


async def _delete_version(rest: RestApi, given: Fields) -> str:
    await rest.send("DELETE", f"/schemas/{given['subject']}/versions/{given['version']}")
    return f"Version {given['version']} was deleted."


async def _revoke(rest: RestApi, given: Fields) -> str:
    await rest.send("DELETE", f"/access/keys/{given['key']}")
    return f"The key {given['key']} was revoked."


async def _unbind(rest: RestApi, given: Fields) -> str:
    await rest.send("DELETE", f"/access/bindings/{given['binding']}")
    return "The binding was deleted."


def _subscription_page(given: Fields) -> str:
    return f"{topic_address(given['topic'])}/subscriptions/{given['subscription']}"


def _topic_page(given: Fields) -> str:
    return topic_address(given["topic"])


def _letters_page(given: Fields) -> str:
    return f"{topic_address(given['topic'])}/dead-letters?partition={given['partition']}"


_LETTER_FIELDS: Final = Field("offset", "One letter only", "its offset; empty: all of the partition")

ACTS: Final[dict[str, Act]] = {
    "create-topic": Act(
        "Create a topic",
        _foretell_create_topic,
        _create_topic,
        _topic_page,
        (),
        (
            Field("topic", "Name", "/namespace/topic", "/default/"),
            Field("partitions", "Partitions", "0: a plain topic", "0"),
            Field("kind", "Kind", choices=("reliable", "non-reliable"), default="reliable"),
        ),
    ),
    "delete-topic": Act(
        "Delete a topic", _foretell_delete_topic, _delete_topic, lambda _: "/topics", ("topic",), confirm="topic"
    ),
    "publish": Act(
        "Publish a message",
        _foretell_publish,
        _publish,
        lambda given: f"{_topic_page(given)}/messages",
        ("topic",),
        (Field("key", "Key", "optional"), Field("payload", "Payload", "text or JSON", is_long=True)),
    ),
    "seek": Act(
        "Move a subscription",
        _foretell_seek,
        _seek,
        _subscription_page,
        ("topic", "subscription"),
        (
            Field(
                "position", "Position", "earliest, latest, an offset or a time such as 2026-01-31T12:00:00Z", "earliest"
            ),
        ),
        confirm="subscription",
    ),
    "skip": Act(
        "Skip a message", _foretell_skip, _skip, _subscription_page, ("topic", "subscription", "partition", "offset")
    ),
    "clear": Act(
        "Clear a backlog",
        _foretell_clear,
        _clear,
        _subscription_page,
        ("topic", "subscription"),
        confirm="subscription",
    ),
    "delete-subscription": Act(
        "Delete a subscription",
        _foretell_delete_subscription,
        _delete_subscription,
        _topic_page,
        ("topic", "subscription"),
        confirm="subscription",
    ),
    "redrive": Act(
        "Send dead letters back",
        _foretell_redrive,
        _redrive,
        _letters_page,
        ("topic", "partition"),
        (_LETTER_FIELDS, Field("to", "To another topic", "empty: each to the topic that it came from")),
    ),
    "drop": Act(
        "Give dead letters up",
        _foretell_drop,
        _drop,
        _letters_page,
        ("topic", "partition"),
        (_LETTER_FIELDS,),
        confirm="topic",
    ),
    "delete-schema-version": Act(
        "Delete a schema version",
        _foretell_delete_version,
        _delete_version,
        lambda given: f"/schemas/{given['subject']}",
        ("subject", "version"),
        confirm="subject",
    ),
    "revoke-key": Act("Revoke an API key", _foretell_revoke, _revoke, lambda _: "/access", ("key",), confirm="key"),
    "delete-binding": Act(
        "Take rights away", _foretell_unbind, _unbind, lambda _: "/access", ("binding",), confirm="binding"
    ),
}
