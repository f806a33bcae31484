"""Administration: namespaces, topics, subscriptions, policies, positions. Most calls are one request to any broker.

Requests that only read, and those that may be executed twice, are repeated after a disconnect until they are answered.
Requests that create, delete, add partitions or compare are sent once: if the connection ends before the answer, the
call raises Unavailable, and the caller has to look what happened.

Calls that change or delete take `expected`: the `version` that `policies`, `describe_topic` or `describe_subscription`
returned. They raise Conflict, and change nothing, if the object has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from pydanube.client.consuming.acks import Range, merge_ranges
from pydanube.client.consuming.messages import PeekedMessage
from pydanube.client.positions import AnyPosition, wire_start
from pydanube.client.settings import check_count
from pydanube.codec.native import requests
from pydanube.codec.native.conversions import subscription_description, topic_description
from pydanube.model.cluster import ClusterDescription, UpgradeDescription
from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.leftovers import Leftover, Loss
from pydanube.model.limits import PARTITIONS_MAX, UNACKED_MAX
from pydanube.model.names import TopicName, parse_namespace, parse_subscription
from pydanube.model.policies import BacklogAction, Policies
from pydanube.model.positions import LATEST, OFFSET_END
from pydanube.model.statistics import TopicStatistics
from pydanube.model.topics import (
    AckLevel,
    AckLevelName,
    BrokerDescription,
    PartitionDescription,
    SubscriptionDescription,
    SubscriptionType,
    SubscriptionTypeName,
    TopicDescription,
)
from pydanube.operations import brokers, topics

from .listing import ListingAdmin
from .peeking import peek

RANGES_PER_REQUEST: Final = 10_000
"""A request with this many ranges is within the limit of its frame."""


class Admin(ListingAdmin):
    """The administrative calls of a client."""

    # -- topics ------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, partitions: int = 0, reliable: bool = True, ack_level: AckLevelName | None = None
    ) -> None:
        """Create a topic. Raises AlreadyExists.

        partitions      0: a non-partitioned topic; 1 or more: a partitioned topic, which can get more partitions later
        reliable        False: messages are not stored, and are delivered at most once, to consumers that are attached
        ack_level       when a publish is answered: "durable" (synced), "stored" (in the object store), "written",
                        "memory"; None: the broker chooses "stored" in a cluster, and "durable" if it is alone
        """
        check_count("partitions", partitions, 0, PARTITIONS_MAX)
        name, level = str(TopicName.parse(topic)), str(AckLevel.parse(ack_level or "durable"))
        request = requests.CreateTopic(
            topic=name, partitions=partitions, reliable=reliable, ack_level=level, choose_level=ack_level is None
        )
        try:
            await self._request_once(request)
        finally:
            self._brokers.moved(name)

    async def delete_topic(self, topic: str, *, expected: str = "") -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFound."""
        name = TopicName.parse(topic)
        await self._do(topics.DeleteTopic(topic=name, expected=expected))
        self._brokers.moved(str(name))

    async def list_topics(self, namespace: str | None = None) -> list[str]:
        """Return the full names of the topics of one namespace, or of all."""
        request = requests.ListTopics(namespace=parse_namespace(namespace) if namespace is not None else "")
        return (await self._request(request, requests.Names)).names

    async def describe_topic(self, topic: str) -> TopicDescription:
        request = requests.DescribeTopic(topic=str(TopicName.parse(topic)))
        return topic_description(await self._request(request, requests.Topic))

    async def partitions(self, topic: str) -> list[PartitionDescription]:
        """Return the partitions of a topic, with the offsets that can be read."""
        return (await self.describe_topic(topic)).partitions

    async def count_partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, by a lookup that opens none of them. Raises NotFound."""
        name, brokers = str(TopicName.parse(topic)), self._brokers
        return len((await brokers.retrying(lambda: brokers.route(name, age_max=0.0), name)).partitions)

    async def grow_topic(self, topic: str, partitions: int, *, expected: str = "") -> None:
        """Add partitions to a partitioned topic, up to `partitions`. Raises Refused for fewer than it has.

        A key may belong to another partition afterwards, so messages of one key before and after this call have no
        order. Producers and consumers that are open notice the new partitions within their `refresh_seconds`; consumers
        receive them from their beginning.
        """
        check_count("partitions", partitions, 1, PARTITIONS_MAX)
        name = str(TopicName.parse(topic))
        try:
            await self._request_once(requests.GrowTopic(topic=name, partitions=partitions, expected=expected))
        finally:
            self._brokers.moved(name)

    async def unload_topic(self, topic: str) -> None:
        """Close the partitions of a topic at their broker; each is opened again when it is used next.

        Everything that was published and acked is synced on return. Open producers and consumers continue by
        themselves; what was delivered and not acked is redelivered. Raises Refused for a topic that is only in memory.
        """
        await self._do(topics.UnloadTopic(topic=TopicName.parse(topic)))

    async def set_ack_level(self, topic: str, ack_level: Literal["durable", "stored"]) -> None:
        """Change the ack level of a topic; what is published from then on is acked under the new one.

        Open producers and consumers continue by themselves; what was delivered and not acked is redelivered. Raises
        Refused for topics and levels of other kinds, and if the object store cannot keep stored topics.
        """
        name, level = TopicName.parse(topic), str(AckLevel.parse(ack_level))
        await self._do(topics.SetAckLevel(topic=name, ack_level=level))

    async def take_over_topic(
        self, topic: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[Loss]:
        """Have other brokers take over one partition, or all, that wait for a lost broker; return what was given up.

        What the lost broker has not uploaded is not readable any more, and its offsets are not used again. Raises
        Refused without `accept_loss` (the message says what would be lost at most), or if nothing waits.
        """
        index = -1 if partition is None else partition
        if partition is not None and partition < 0:
            raise Invalid(f"partition {partition} is out of range: use 0 or more")
        name = TopicName.parse(topic)
        try:
            taken = await self._do(topics.TakeOverTopic(topic=name, partition=index, accept_loss=accept_loss))
        finally:
            self._brokers.moved(str(name))
        return taken.losses

    async def leftovers(self, broker: str = "") -> list[Leftover]:
        """Return what brokers, or one of them, still have of partitions that others took over."""
        return (await self._do(brokers.ListLeftovers(broker=broker))).leftovers

    async def salvage_topic(self, topic: str, partition: int, to: str, *, broker: str = "", drop: bool = False) -> int:
        """Publish the leftovers of a partition to the topic `to`; return how many messages were published. With `drop`,
        drop them afterwards. What an earlier call published to the same topic is not published again.

        Each message has the attributes x-original-topic, x-original-partition and x-original-offset. `broker`: whose
        leftovers; needed only if several have some. Raises Refused for the topic that they came from.
        """
        name, target = str(TopicName.parse(topic)), str(TopicName.parse(to))
        published = 0
        while True:
            request = requests.SalvageTopic(topic=name, partition=partition, to=target, broker=broker, drop=drop)
            step = (await self._request(request, requests.Salvaged)).step
            published += step.published
            if step.is_last:
                return published

    async def truncate_topic(self, topic: str, before: AnyPosition, *, partition: int | None = None) -> dict[int, int]:
        """Delete everything before a position, in one partition or in all; durable on return. This cannot be undone.

        Returns partition -> offset, where the partitions begin now. Offsets are not used again. Subscriptions that
        stand before the position move up to it: what they have not acked counts as acked. Raises Invalid for an offset
        past the end of a partition.
        """
        name, found = str(TopicName.parse(topic)), await self.describe_topic(topic)
        indexes = range(len(found.partitions)) if partition is None else (partition,)
        start = wire_start(before)
        if start.kind == "offset":
            offsets = dict.fromkeys(indexes, start.value)
        else:  # resolved once, so that a repeated request does not delete more
            offsets = {index: await self.find_offset(name, index, before) for index in indexes}
        asked = topics.TruncateTopic(topic=TopicName.parse(topic), offsets=list(offsets.items()))
        return dict((await self._do(asked)).positions)

    async def topic_statistics(self, topic: str) -> TopicStatistics:
        """Return rates, backlogs and counts of a topic, its subscriptions and their consumers, for each partition."""
        request = requests.GetStatistics(topic=str(TopicName.parse(topic)))
        return (await self._request(request, requests.StatisticsReport)).topic

    # -- policies ----------------------------------------------------------------------------------------------------

    async def policies(self, target: str) -> requests.PolicyReport:
        """Return the policies of a topic (``/namespace/topic``) or a namespace: its `own`, and the `effective` ones."""
        return await self._request(requests.GetPolicies(target=_checked_target(target)), requests.PolicyReport)

    async def set_policies(
        self, target: str, /, *, expected: str = "", **changes: int | str | None
    ) -> requests.PolicyReport:
        """Change policies of a topic or a namespace, by the names of `pydanube.Policies`. They take effect at once.

        None removes a policy, so that it is inherited again. Returns the new policies, as `policies` does.
        """
        values = {name: _checked_policy(name, value) for name, value in changes.items()}
        Policies().changed(values)
        request = requests.SetPolicies(target=_checked_target(target), changes=values, expected=expected)
        return await self._change(request, requests.PolicyReport, expected)

    # -- namespaces --------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str) -> None:
        await self._request_once(requests.CreateNamespace(namespace=parse_namespace(namespace)))

    async def delete_namespace(self, namespace: str, *, expected: str = "") -> None:
        """Delete a namespace. Raises Refused while it has topics."""
        request = requests.DeleteNamespace(namespace=parse_namespace(namespace), expected=expected)
        await self._request_once(request)

    async def list_namespaces(self) -> list[str]:
        return (await self._request(requests.ListNamespaces(), requests.Names)).names

    # -- subscriptions -----------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",  # noqa: A002  the word of the contract
        start: AnyPosition = LATEST,
        offsets: Mapping[int, int] | None = None,
        failure_policy: FailurePolicy | None = None,
    ) -> None:
        """Create a subscription without a consumer, on every partition; durable on return. Raises AlreadyExists.

        start           where the subscription starts
        offsets         partition -> offset, where it starts in some partitions instead; set together with `start`
        """
        for partition, offset in (offsets or {}).items():
            check_count("partition", partition, 0, PARTITIONS_MAX - 1)
            check_count("offset", offset, 0, OFFSET_END - 1)
        if failure_policy is not None:
            _check_failure_policy(failure_policy)
        request = requests.CreateSubscription(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            type=str(SubscriptionType.parse(type)),
            start=wire_start(start),
            failure_policy=failure_policy,
            positions=list((offsets or {}).items()),
        )
        await self._request_once(request)

    async def delete_subscription(self, topic: str, subscription: str, *, expected: str = "") -> None:
        request = requests.DeleteSubscription(
            topic=str(TopicName.parse(topic)), subscription=parse_subscription(subscription), expected=expected
        )
        await self._request_once(request)

    async def list_subscriptions(self, topic: str) -> list[str]:
        return (
            await self._request(requests.ListSubscriptions(topic=str(TopicName.parse(topic))), requests.Names)
        ).names

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionDescription:
        request = requests.DescribeSubscription(
            topic=str(TopicName.parse(topic)), subscription=parse_subscription(subscription)
        )
        return subscription_description(await self._request(request, requests.Subscription))

    async def seek(
        self, topic: str, subscription: str, position: AnyPosition, *, partition: int | None = None
    ) -> dict[int, int]:
        """Move a subscription to `position`, on one partition or on all of them; durable on return.

        Returns partition -> offset, the new positions.
        """
        request = requests.Seek(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            position=wire_start(position),
            partition=-1 if partition is None else partition,
        )
        return dict((await self._request(request, topics.Positions)).positions)

    async def set_failure_policy(
        self, topic: str, subscription: str, policy: FailurePolicy, *, expected: str = ""
    ) -> None:
        """Set what happens to messages that fail at this subscription. Takes effect at once, on every partition."""
        _check_failure_policy(policy)
        request = requests.SetFailurePolicy(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            failure_policy=policy,
            expected=expected,
        )
        await self._change(request, requests.Done, expected)

    async def set_unacked_max(self, topic: str, subscription: str, unacked_max: int, *, expected: str = "") -> None:
        """Limit how many messages of each partition are delivered and not acked, over all consumers; 0: no limit.

        Takes effect at once: while more are unacked than a new limit allows, nothing is delivered.
        """
        check_count("unacked_max", unacked_max, 0, UNACKED_MAX)
        request = requests.SetUnackedMax(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            unacked_max=unacked_max,
            expected=expected,
        )
        await self._change(request, requests.Done, expected)

    async def advance(self, topic: str, subscription: str, partition: int, offset: int, expected: int) -> None:
        """Move a subscription without consumers from `expected` to `offset`. Raises Refused if it is elsewhere.

        For a processing engine that stores its progress here: messages below `offset` count as acked for lag and
        retention.
        """
        for name, value in (("offset", offset), ("expected", expected)):
            check_count(name, value, 0, OFFSET_END - 1)
        request = requests.Advance(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            partition=partition,
            offset=offset,
            expected=expected,
        )
        await self._request_once(request)

    async def advance_many(
        self, topic: str, subscription: str, moves: Iterable[tuple[int, int, int]]
    ) -> dict[int, int]:
        """Move many partitions of a subscription as `advance` does; a move is (partition, offset, expected).

        A partition whose position is not the expected one is not moved. Returns partition -> offset, the positions of
        all of them afterwards.
        """
        name, subscription = str(TopicName.parse(topic)), parse_subscription(subscription)
        wanted, positions = list(moves), dict[int, int]()
        for partition, offset, expected in wanted:
            check_count("partition", partition, 0, PARTITIONS_MAX - 1)
            check_count("offset", offset, 0, OFFSET_END - 1)
            check_count("expected", expected, 0, OFFSET_END - 1)
        for start in range(0, len(wanted), RANGES_PER_REQUEST):
            some = wanted[start : start + RANGES_PER_REQUEST]
            request = requests.AdvanceMany(topic=name, subscription=subscription, moves=some)
            positions.update((await self._request(request, topics.Positions)).positions)
        return positions

    async def skip(
        self, topic: str, subscription: str, partition: int, offsets: int | Iterable[int | tuple[int, int]]
    ) -> int:
        """Ack messages without a consumer: an offset, several, or ranges (start, end). Durable on return.

        Returns how many of them were not acked before. Skipping a message that blocks the subscription lets it
        continue. The messages stay stored, and `seek` makes them available again. Raises Invalid for an offset past the
        end.
        """
        name, subscription = str(TopicName.parse(topic)), parse_subscription(subscription)
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        ranges, settled = _checked_ranges(offsets), 0
        for start in range(0, len(ranges), RANGES_PER_REQUEST):
            some = ranges[start : start + RANGES_PER_REQUEST]
            request = requests.Settle(topic=name, subscription=subscription, partition=partition, ranges=some)
            settled += (await self._request(request, requests.Settled)).messages
        return settled

    async def clear_backlog(self, topic: str, subscription: str, *, partition: int | None = None) -> int:
        """Ack every message in the backlog of a subscription, on one partition or on all. Durable on return.

        Returns the number of those messages.
        """
        request = requests.Settle(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            partition=-1 if partition is None else partition,
        )
        return (await self._request(request, requests.Settled)).messages

    async def peek(
        self, topic: str, subscription: str, count: int = 10, *, partition: int | None = None
    ) -> list[PeekedMessage]:
        """Return the first messages that a subscription has not acked, without consuming them; also those in flight.

        Each has the reason why it is not acked yet: see `PeekedMessage`.
        """
        check_count("count", count, 1, 1 << 31)
        self._check_open()
        name, subscription = str(TopicName.parse(topic)), parse_subscription(subscription)
        return await peek(self._brokers, name, subscription, count, partition)

    # -- positions and brokers ---------------------------------------------------------------------------------------

    async def find_offset(self, topic: str, partition: int = 0, position: AnyPosition = LATEST) -> int:
        """Return the offset of a position: of the first message at or after a time, of the start, or of the end."""
        request = requests.FindOffset(
            topic=str(TopicName.parse(topic)), partition=partition, position=wire_start(position)
        )
        return (await self._request(request, requests.Offset)).offset

    async def describe_broker(self) -> BrokerDescription:
        """Describe the broker that this client is connected to."""
        return await self._do(brokers.DescribeBroker())

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster: every broker, what it does, and which brokers are away. A broker alone is the only
        one."""
        return (await self._do(brokers.DescribeCluster())).cluster

    async def describe_upgrade(self) -> UpgradeDescription:
        """Return the feature level of the metadata that is in force, and what each living broker knows."""
        return (await self._do(brokers.DescribeUpgrade())).upgrade

    async def finish_upgrade(self) -> UpgradeDescription:
        """Raise the feature level to the newest one that all living brokers know; releases that do not know it can no
        longer be started on this metadata. Raises Refused while an older broker is present, and names it."""
        return (await self._do(brokers.FinishUpgrade())).upgrade

    async def _change(
        self, request: requests.Request, answer: type[requests.StructT], expected: str
    ) -> requests.StructT:
        """Send a change that may be made twice. One that compares is sent once: repeated after a lost answer, it would
        find what it has changed itself."""
        return await (self._answer_once(request, answer) if expected else self._request(request, answer))

    async def _request_once(self, request: requests.Request) -> None:
        await self._answer_once(request, requests.Done)

    async def _answer_once(self, request: requests.Request, answer: type[requests.StructT]) -> requests.StructT:
        """Send a request to any broker once, and return the answer."""
        self._check_open()
        return await self._brokers.call(request, answer, repeatable=False)


def _checked_target(text: str) -> str:
    """Return the full name of a topic or a namespace. Raises Invalid."""
    return str(TopicName.parse(text)) if isinstance(text, str) and "/" in text else parse_namespace(text)


def _checked_policy(name: str, value: int | str | None) -> int | None:
    if name == "backlog_action" and isinstance(value, str):
        return BacklogAction.parse(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Invalid(f"policy {name}={value!r} is not a whole number")
    return value


def _check_failure_policy(policy: FailurePolicy) -> None:
    if not isinstance(policy, FailurePolicy):
        raise Invalid(f"{policy!r} is not a failure policy: use pydanube.FailurePolicy(...)")


def _checked_ranges(offsets: int | Iterable[int | tuple[int, int]]) -> list[Range]:
    """Return offsets and ranges as sorted ranges. Raises Invalid."""
    given = [offsets] if isinstance(offsets, int) else list(offsets)
    if not given:
        raise Invalid("no offset to skip; for everything there is, use clear_backlog")
    return merge_ranges(_checked_range(one) for one in given)


def _checked_range(one: int | tuple[int, int]) -> Range:
    match one:
        case bool():
            pass
        case int() if 0 <= one < OFFSET_END - 1:
            return one, one + 1
        case (int() as start, int() as end) if 0 <= start < end < OFFSET_END:
            return start, end
    raise Invalid(f"{one!r} is neither an offset nor a range (start, end) of offsets")
