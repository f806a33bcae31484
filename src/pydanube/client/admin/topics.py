"""Topics and namespaces: `client.topics` and `client.namespaces`.

```python
await client.namespaces.create("shop")
await client.topics.create("/shop/orders", partitions=3)
page = await client.topics.page(filter="/shop/*", sort="-backlog", limit=20)
while page.next:
    page = await client.topics.page(filter="/shop/*", sort="-backlog", limit=20, after=page.next)
```

Most calls are one request to any broker. Those that only read, and those that may be executed twice, are repeated after
a disconnect until they are answered. Those that create, delete, add partitions or compare are sent once: if the
connection ends before the answer, the call raises Unavailable, and the caller has to look what happened.

Calls that change or delete take `expected`: the `version` that `policies` or `describe` returned. They raise Conflict,
and change nothing, if the object has changed since.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Final, Literal, Unpack

from pydanube.client.positions import AnyPosition
from pydanube.client.settings import check_count
from pydanube.model.cluster import PartitionMoved
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.leftovers import Leftover, Loss, Salvage
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName, parse_namespace
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, PageQuery, TopicPage
from pydanube.model.policies import BacklogAction, Policies, PolicyReport
from pydanube.model.positions import LATEST, Position
from pydanube.model.statistics import TopicStatistics, TopicSummary
from pydanube.model.topics import AckLevel, AckLevelName, PartitionDescription, TopicDescription
from pydanube.operations import brokers, namespaces, topics

from .area import Area, PageArguments, name_page

TOPICS_AT_ONCE: Final = 500


class PolicyArea(Area):
    """The policies of topics and of namespaces, which topics inherit."""

    async def policies(self, target: str) -> PolicyReport:
        """Return the policies of a topic (``/namespace/topic``) or a namespace: its `own`, and the `effective` ones."""
        return await self._client._do(namespaces.GetPolicies(target=_checked_target(target)))

    async def set_policies(self, target: str, /, *, expected: str = "", **changes: int | str | None) -> PolicyReport:
        """Change policies of a topic or a namespace, by the names of `pydanube.Policies`. They take effect at once.

        None removes a policy, so that it is inherited again. Returns the new policies, as `policies` does.
        """
        values = {name: _checked_policy(name, value) for name, value in changes.items()}
        Policies().changed(values)
        asked = namespaces.SetPolicies(target=_checked_target(target), changes=values, expected=expected)
        return await self._client._do(asked)


class Topics(PolicyArea):
    """The topics of a client's cluster, by their full names. Made by `client.topics`."""

    async def create(
        self, topic: str, *, partitions: int = 0, reliable: bool = True, ack_level: AckLevelName | None = None
    ) -> None:
        """Create a topic. Raises AlreadyExists.

        partitions      0: a non-partitioned topic; 1 or more: a partitioned topic, which can get more partitions later
        reliable        False: messages are not stored, and are delivered at most once, to consumers that are attached
        ack_level       when a publish is answered: "durable" (synced), "stored" (in the object store), "written",
                        "memory"; None: the broker chooses "stored" in a cluster, and "durable" if it is alone
        """
        check_count("partitions", partitions, 0, PARTITIONS_MAX)
        name, level = TopicName.parse(topic), str(AckLevel.parse(ack_level or "durable"))
        asked = topics.CreateTopic(
            topic=name, partitions=partitions, reliable=reliable, ack_level=level, choose_level=ack_level is None
        )
        try:
            await self._client._do(asked)
        finally:
            self._client._brokers.moved(str(name))

    async def delete(self, topic: str, *, expected: str = "") -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFound."""
        name = TopicName.parse(topic)
        await self._client._do(topics.DeleteTopic(topic=name, expected=expected))
        self._client._brokers.moved(str(name))

    async def list(self, namespace: str | None = None) -> builtins.list[str]:
        """Return the full names of the topics of one namespace, or of all."""
        asked = topics.ListTopics(namespace=parse_namespace(namespace) if namespace is not None else "")
        return (await self._client._do(asked)).names

    async def page(self, namespace: str | None = None, **query: Unpack[PageArguments]) -> TopicPage:
        """Return one page of topics, of one namespace or of all, each with its `TopicSummary`.

        filter      a glob for the whole name, or, without `*`, `?` and `[`, a part of it
        sort        "name", or a number such as "backlog" (see `TOPIC_NUMBERS`); with a - before it descending
        limit       the most topics of the page; it may have fewer and be followed by others
        after       `next` of the page before
        """
        checked = PageQuery(**query)
        checked.order(TOPIC_NUMBERS)
        asked = topics.ListTopicPage(
            namespace=parse_namespace(namespace) if namespace is not None else "",
            filter=checked.filter,
            sort=checked.sort,
            limit=checked.limit,
            after=checked.after,
        )
        return await self._client._do(asked)

    async def summaries(self, namespace: str | None = None, *, filter: str = "") -> builtins.list[TopicSummary]:  # noqa: A002
        """Return the summaries of all topics, or of those of one namespace, by name. `filter` as in `page`."""
        found, after = list[TopicSummary](), ""
        while True:
            page = await self.page(namespace, filter=filter, limit=TOPICS_AT_ONCE, after=after)
            found += page.topics
            if not page.next:
                return found
            after = page.next

    async def describe(self, topic: str) -> TopicDescription:
        return (await self._client._do(topics.DescribeTopic(topic=TopicName.parse(topic)))).description

    async def partitions(self, topic: str) -> builtins.list[PartitionDescription]:
        """Return the partitions of a topic, with the offsets that can be read."""
        return (await self.describe(topic)).partitions

    async def count_partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, by a lookup that opens none of them. Raises NotFound."""
        name, brokers = str(TopicName.parse(topic)), self._client._brokers
        return len((await brokers.retrying(lambda: brokers.route(name, age_max=0.0), name)).partitions)

    async def grow(self, topic: str, partitions: int, *, expected: str = "") -> None:
        """Add partitions to a partitioned topic, up to `partitions`. Raises Refused for fewer than it has.

        A key may belong to another partition afterwards, so messages of one key before and after this call have no
        order. Producers and consumers that are open notice the new partitions within their `refresh_seconds`; consumers
        receive them from their beginning.
        """
        check_count("partitions", partitions, 1, PARTITIONS_MAX)
        name = TopicName.parse(topic)
        try:
            await self._client._do(topics.GrowTopic(topic=name, partitions=partitions, expected=expected))
        finally:
            self._client._brokers.moved(str(name))

    async def statistics(self, topic: str) -> TopicStatistics:
        """Return rates, backlogs and counts of a topic, its subscriptions and their consumers, for each partition."""
        return (await self._client._do(topics.GetStatistics(topic=TopicName.parse(topic)))).topic

    async def find_offset(self, topic: str, partition: int = 0, position: AnyPosition = LATEST) -> int:
        """Return the offset of a position: of the first message at or after a time, of the start, or of the end."""
        name, wanted = TopicName.parse(topic), Position.parse(position)
        return (await self._client._do(topics.FindOffset(topic=name, partition=partition, position=wanted))).offset

    async def truncate(self, topic: str, before: AnyPosition, *, partition: int | None = None) -> dict[int, int]:
        """Delete everything before a position, in one partition or in all; durable on return. This cannot be undone.

        Returns partition -> offset, where the partitions begin now. Offsets are not used again. Subscriptions that
        stand before the position move up to it: what they have not acked counts as acked. Raises Invalid for an offset
        past the end of a partition.
        """
        name, found = str(TopicName.parse(topic)), await self.describe(topic)
        indexes = range(len(found.partitions)) if partition is None else (partition,)
        start = Position.parse(before)
        if start.kind == "offset":
            offsets = dict.fromkeys(indexes, start.value)
        else:  # resolved once, so that a repeated request does not delete more
            offsets = {index: await self.find_offset(name, index, before) for index in indexes}
        asked = topics.TruncateTopic(topic=TopicName.parse(topic), offsets=list(offsets.items()))
        return dict((await self._client._do(asked)).positions)

    async def unload(self, topic: str) -> None:
        """Close the partitions of a topic at their broker; each is opened again when it is used next.

        Everything that was published and acked is synced on return. Open producers and consumers continue by
        themselves; what was delivered and not acked is redelivered. Raises Refused for a topic that is only in memory.
        """
        await self._client._do(topics.UnloadTopic(topic=TopicName.parse(topic)))

    async def set_ack_level(self, topic: str, ack_level: Literal["durable", "stored"]) -> None:
        """Change the ack level of a topic; what is published from then on is acked under the new one.

        Open producers and consumers continue by themselves; what was delivered and not acked is redelivered. Raises
        Refused for topics and levels of other kinds, and if the object store cannot keep stored topics.
        """
        name, level = TopicName.parse(topic), str(AckLevel.parse(ack_level))
        await self._client._do(topics.SetAckLevel(topic=name, ack_level=level))

    async def take_over(
        self, topic: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> builtins.list[Loss]:
        """Have other brokers take over one partition, or all, that wait for a lost broker; return what was given up.

        What the lost broker has not uploaded is not readable any more, and its offsets are not used again. Raises
        Refused without `accept_loss` (the message says what would be lost at most), or if nothing waits.
        """
        index = -1 if partition is None else partition
        if partition is not None and partition < 0:
            raise Invalid(f"partition {partition} is out of range: use 0 or more")
        name = TopicName.parse(topic)
        try:
            taken = await self._client._do(topics.TakeOverTopic(topic=name, partition=index, accept_loss=accept_loss))
        finally:
            self._client._brokers.moved(str(name))
        return taken.losses

    async def move(self, topic: str, to: str, *, partition: int = 0) -> PartitionMoved:
        """Have the owner of a partition give it to the broker `to`; return which broker had it.

        Open producers and consumers continue by themselves; what was delivered and not acked is redelivered. Raises
        NotFound if there is no such partition or broker, and Refused, which says what helps, if the broker takes no
        partitions, has this one already, or the partition cannot be moved now.
        """
        if partition < 0:
            raise Invalid(f"partition {partition} is out of range: use 0 or more")
        name = TopicName.parse(topic)
        try:
            return await self._client._do(topics.MoveTopic(topic=name, partition=partition, to=to))
        finally:
            self._client._brokers.moved(str(name))

    async def leftovers(self, broker: str = "") -> builtins.list[Leftover]:
        """Return what brokers, or one of them, still have of partitions that others took over."""
        return (await self._client._do(brokers.ListLeftovers(broker=broker))).leftovers

    async def salvage(self, topic: str, partition: int, to: str, *, broker: str = "", drop: bool = False) -> int:
        """Publish the leftovers of a partition to the topic `to`; return how many messages were published. With `drop`,
        drop them afterwards. What an earlier call published to the same topic is not published again.

        Each message has the attributes x-original-topic, x-original-partition and x-original-offset. `broker`: whose
        leftovers; needed only if several have some. Raises Refused for the topic that they came from.
        """
        asked = topics.SalvageTopic(
            topic=TopicName.parse(topic), partition=partition, to=TopicName.parse(to), broker=broker, drop=drop
        )
        published = 0
        while True:
            step = (await self._client._do(asked)).step
            published += step.published
            if step.is_last:
                return published

    async def salvage_all(
        self,
        to: str,
        *,
        topic: str = "",
        broker: str = "",
        drop: bool = False,
        progress: Callable[[Salvage, int], None] | None = None,
    ) -> builtins.list[Salvage]:
        """Publish all leftovers, or those of one topic or of one broker, to the topic `to`, as `salvage` does with
        those of one partition. What fails is noted, also that a broker is away, and the others are published.
        `progress` is called after each partition with what became of it, and with how many there are. Leftovers of the
        topic `to` itself stay where they are."""
        found = [one for one in await self.leftovers(broker) if topic in ("", one.topic) and one.topic != to]
        places = {(one.topic, one.partition, one.broker): one.state for one in found}
        done: builtins.list[Salvage] = []
        for (name, partition, holder), state in places.items():
            published, failure = 0, "" if state == "ok" else state
            try:
                if not failure:
                    published = await self.salvage(name, partition, to, broker=holder, drop=drop)
            except DanubeError as error:
                failure = error.message
            done.append(Salvage(name, partition, holder, published, failure))
            if progress is not None:
                progress(done[-1], len(places))
        return done


class Namespaces(PolicyArea):
    """The namespaces of a client's cluster. Made by `client.namespaces`."""

    async def create(self, namespace: str) -> None:
        await self._client._do(namespaces.CreateNamespace(namespace=parse_namespace(namespace)))

    async def delete(self, namespace: str, *, expected: str = "") -> None:
        """Delete a namespace. Raises Refused while it has topics."""
        await self._client._do(namespaces.DeleteNamespace(namespace=parse_namespace(namespace), expected=expected))

    async def list(self) -> builtins.list[str]:
        return (await self._client._do(namespaces.ListNamespaces())).names

    async def page(self, **query: Unpack[PageArguments]) -> NamePage:
        """Return one page of the names of namespaces, sorted by name only; the arguments as for
        `client.topics.page`."""
        checked = PageQuery(**query)
        asked = namespaces.ListNamespaces(
            filter=checked.filter, sort=checked.sort, limit=checked.limit, after=checked.after
        )
        return name_page(await self._client._do(asked), checked)


def _checked_target(text: str) -> str:
    """Return the full name of a topic or a namespace. Raises Invalid."""
    return str(TopicName.parse(text)) if isinstance(text, str) and "/" in text else parse_namespace(text)


def _checked_policy(name: str, value: int | str | None) -> int | None:
    if name == "backlog_action" and isinstance(value, str):
        return BacklogAction.parse(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Invalid(f"policy {name}={value!r} is not a whole number")
    return value
