"""The pages, by subject. Each asks REST for its parts at once; what fails shows why, and the rest stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from . import messages
from .rest import subscription_path, topic_path
from .view import Part, View

PAGE_TOPICS: Final = 200
"""Rows of a list."""
BUSIEST: Final = 10
LETTERS: Final = 200


async def overview(view: View) -> Response:
    rest = view.rest
    health, cluster, storage, busiest, behind = await view.parts(
        rest.get("/health"),
        rest.get("/cluster"),
        rest.get("/storage"),
        rest.get("/topics", sort="-messages_per_s", limit=BUSIEST),
        rest.get("/topics", sort="-backlog", limit=BUSIEST),
    )
    return view.page(
        "overview.html",
        health=health,
        cluster=cluster,
        storage=storage,
        busiest=busiest,
        behind=behind,
        troubles=troubles(health, cluster, storage, behind),
    )


def troubles(health: Part, cluster: Part, storage: Part, behind: Part) -> list[str]:
    """Return what is wrong, a sentence each; nothing: all is well."""
    found = [part.problem for part in (health, cluster, storage, behind) if part.problem]
    if health.value:
        found += health.value["reasons"]
    if cluster.value:
        found += [
            f"Broker {one['name']} is {one['state']}." for one in cluster.value["brokers"] if one["state"] != "ok"
        ]
        if cluster.value["unplaced"]:
            found.append(f"{cluster.value['unplaced']} partitions have no owner.")
    if storage.value and storage.value["status"]["failure"]:
        found.append(f"Uploads fail: {storage.value['status']['failure']}")
    if behind.value:
        for topic in behind.value["topics"]:
            if topic["health"] != "ok":
                found.append(f"Topic {topic['topic']}: {topic['health']}")
            found += [
                f"{one['blocked']} messages block {one['name']} on {topic['topic']}."
                for one in topic["subscriptions"]
                if one["blocked"]
            ]
    return found


async def topics(view: View) -> Response:
    text = view.query("filter")
    pattern = text if not text or set(text) & set("*?[") else f"*{text}*"
    found = await view.rest.get(
        "/topics",
        filter=pattern or None,
        sort=view.query("sort", "name"),
        after=view.query("after") or None,
        limit=PAGE_TOPICS,
    )
    return view.page("topics.html", found=found, filter=text, sort=view.query("sort", "name"))


async def topic(view: View) -> Response:
    rest, name = view.rest, view.topic
    described = await rest.get(topic_path(name))
    statistics, policies, shared, schema, storage = await view.parts(
        rest.get(topic_path(name, "/statistics")),
        rest.get(topic_path(name, "/policies")),
        rest.get(f"/namespaces/{view.path('namespace')}/policies"),
        rest.get(topic_path(name, "/schema")),
        rest.get("/storage", topic=name),
    )
    return view.page(
        "topic.html",
        topic=name,
        described=described,
        statistics=statistics,
        policies=policies,
        shared=shared,
        schema=schema,
        storage=storage,
        subscriptions=summed(statistics.value["partitions"] if statistics.value else []),
    )


def summed(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each subscription with its counters over all partitions."""
    found: dict[str, dict[str, Any]] = {}
    for partition in partitions:
        for one in partition["subscriptions"]:
            total = found.setdefault(one["name"], {"name": one["name"], "type": one["type"], "consumers": set()})
            total["consumers"] |= {consumer["name"] for consumer in one["consumers"]}
            total["backlog_s"] = max(total.get("backlog_s", 0), one["backlog_s"])
            for counter in ("backlog", "unacked", "delayed", "blocked", "redelivered", "messages_per_s", "acks_per_s"):
                total[counter] = total.get(counter, 0) + one[counter]
    return sorted(found.values(), key=lambda one: str(one["name"]))


async def subscription(view: View) -> Response:
    rest, topic_name, name = view.rest, view.topic, view.path("subscription")
    described = await rest.get(subscription_path(topic_name, name))
    statistics, backlog = await view.parts(
        rest.get(subscription_path(topic_name, name, "/statistics")),
        rest.get(subscription_path(topic_name, name, "/peek"), limit=20),
    )
    return view.page(
        "subscription.html", topic=topic_name, name=name, described=described, statistics=statistics, backlog=backlog
    )


async def dead_letters(view: View) -> Response:
    """Letters of a dead letter topic, grouped by where they came from and why."""
    partition, after = view.query("partition", "0"), view.query("after")
    found, described = await view.parts(
        view.rest.get(topic_path(view.topic, "/dead-letters"), partition=partition, after=after or None, limit=LETTERS),
        view.rest.get(topic_path(view.topic)),
    )
    groups: dict[tuple[str, str, str], int] = {}
    for letter in found.value["letters"] if found.value else ():
        key = (letter["original_topic"], letter["original_subscription"], letter["reason"])
        groups[key] = groups.get(key, 0) + 1
    return view.page(
        "dead_letters.html",
        topic=view.topic,
        found=found,
        described=described,
        partition=partition,
        groups=sorted(groups.items(), key=lambda one: -one[1]),
    )


async def schemas(view: View) -> Response:
    found = await view.rest.get("/schemas", prefix=view.query("prefix") or None, after=view.query("after") or None)
    return view.page("schemas.html", found=found, prefix=view.query("prefix"))


async def schema(view: View) -> Response:
    rest, subject = view.rest, f"/schemas/{view.path('subject')}"
    described = await rest.get(subject)
    (versions,) = await view.parts(rest.get(f"{subject}/versions"))
    chosen = view.query("version", "latest")
    shown, before = await view.parts(
        rest.get(f"{subject}/versions/{chosen}"),
        rest.get(f"{subject}/versions/{view.query('with')}") if view.query("with") else _nothing(),
    )
    return view.page("schema.html", described=described, versions=versions, shown=shown, before=before)


async def _nothing() -> None:
    return None


async def brokers(view: View) -> Response:
    cluster, upgrade, leftovers = await view.parts(
        view.rest.get("/cluster"), view.rest.get("/cluster/upgrade"), view.rest.get("/leftovers")
    )
    return view.page("brokers.html", cluster=cluster, upgrade=upgrade, leftovers=leftovers)


async def storage(view: View) -> Response:
    found = await view.rest.get("/storage", after=view.query("after") or None)
    return view.page("storage.html", found=found)


async def queries(view: View) -> Response:
    return view.page("queries.html", found=await view.rest.get("/staged-queries", after=view.query("after") or None))


async def access(view: View) -> Response:
    rest = view.rest
    asks = bool(view.query("action") and view.query("resource"))
    who, roles, bindings, keys, decision = await view.parts(
        rest.get("/access/whoami"),
        rest.get("/access/roles"),
        rest.get("/access/bindings"),
        rest.get("/access/keys"),
        rest.get(
            "/access/can",
            action=view.query("action"),
            resource=view.query("resource"),
            principal=view.query("principal") or None,
        )
        if asks
        else _nothing(),
    )
    return view.page("access.html", who=who, roles=roles, bindings=bindings, keys=keys, decision=decision)


_TOPIC: Final = "/topics/{namespace}/{topic}"

PAGES: Final[dict[str, Callable[[View], Awaitable[Response]]]] = {
    "/": overview,
    "/topics": topics,
    _TOPIC: topic,
    f"{_TOPIC}/messages": messages.browse,
    f"{_TOPIC}/dead-letters": dead_letters,
    f"{_TOPIC}/subscriptions/{{subscription}}": subscription,
    "/schemas": schemas,
    "/schemas/{subject}": schema,
    "/brokers": brokers,
    "/storage": storage,
    "/queries": queries,
    "/access": access,
}
