"""The parameters of one measurement, used by the command, the workers and the report."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pydanube.model.limits import BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX
from pydanube.model.topics import AckLevelName

from .load import STAMP_BYTES

Receive = Literal["batches", "messages"]
Type = Literal["exclusive", "shared", "failover", "key-shared"]
Order = Literal["partition", "key", "none"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes are bytes of one payload; `count` is messages over all producers (0: run for `seconds`)."""

    size: int = 100
    batch: int = 500
    count: int = 1_000_000
    seconds: float = 0.0
    ack_level: AckLevelName = "durable"
    partitions: int = 0
    topics: int = 1
    producers: int = 1
    consumers: int = 1
    type: Type = "exclusive"
    subscriptions: int = 0
    """0: exclusive has one for each consumer, the other types one for all consumers together."""
    keys: int = 0
    """The number of different keys of the messages; 0: no keys."""
    reliable: bool = True
    receive: Receive = "batches"
    compression: Literal["none", "lz4", "zstd"] = "none"
    rate: float = 0.0
    """Messages per second over all producers; 0: as fast as acks come back."""
    latency: bool = False
    """Send one message at a time, on schedule, and measure each."""
    verify: bool = False

    def problem(self) -> str | None:
        """Return what is wrong with the scenario, for the user; None: nothing."""
        if not STAMP_BYTES <= self.size <= MESSAGE_BYTES_MAX:
            return f"--size {self.size} is out of range: use {STAMP_BYTES} (the stamp in it) to {MESSAGE_BYTES_MAX}"
        if not 1 <= self.batch <= BATCH_MESSAGES_MAX:
            return f"--batch {self.batch} is out of range: use 1 to {BATCH_MESSAGES_MAX}"
        if self.count <= 0 and self.seconds <= 0:
            return "nothing to send: give --count or --seconds"
        if self.producers < 1 or self.topics < 1:
            return "at least one producer and one topic are needed"
        if min(self.consumers, self.subscriptions, self.keys) < 0:
            return "consumers, subscriptions and keys are counted from 0"
        if self.type == "exclusive" and self.consumers > self.subscription_count:
            return f"an exclusive subscription has one consumer: {self.consumers} need as many subscriptions"
        if self.subscriptions and not self.consumers:
            return "--subscriptions without a consumer would only fall behind"
        if self.type == "key-shared" and not self.keys:
            return "--type key-shared needs --keys: messages without one all go to one consumer"
        if self.verify and self.consumers < 1:
            return "--verify needs a consumer: what nobody receives cannot be checked"
        if self.latency and self.rate <= 0:
            return "--latency needs a --rate to hold, for example --rate 1000"
        if self.latency and self.consumers > 1:
            return "--latency takes one consumer: with more, each waits for the others' share of two cores"
        return None

    @property
    def subscription_count(self) -> int:
        if self.subscriptions:
            return self.subscriptions
        return self.consumers if self.type == "exclusive" else min(1, self.consumers)

    def taken_by(self, consumer: int) -> list[int]:
        """Return the subscriptions of consumer process `consumer`."""
        return [
            number
            for number in range(self.subscription_count)
            if self.type != "exclusive" or number % self.consumers == consumer
        ]

    @property
    def has_whole_subscriptions(self) -> bool:
        """Whether each consumer receives all messages of its subscriptions, so that it knows when it is complete."""
        return self.reliable and not self.seconds and (self.type == "exclusive" or self.consumers == 1)

    @property
    def order(self) -> Order:
        """The guaranteed order of delivery."""
        match self.type:
            case "shared":
                return "none"
            case "key-shared":
                return "key"
            case _:
                return "partition"

    def per_producer(self, index: int) -> int:
        """Return how many messages producer `index` sends; 0: until `seconds` have passed."""
        if self.seconds > 0:
            return 0
        share, rest = divmod(self.count, self.producers)
        return share + (index < rest)

    def title(self) -> str:
        how = f"at {self.rate:,.0f}/s, one by one" if self.latency else f"in batches of {self.batch:,}"
        keys = f" with {self.keys:,} keys" if self.keys else ""
        parts = [f"{self.size:,} B messages{keys} {how}", f"{self.ack_level} acks" if self.reliable else "non-reliable"]
        if self.topics > 1:
            parts.append(f"{self.topics:,} topics")
        if self.partitions > 1:
            parts.append(f"{self.partitions:,} partitions")
        parts.append(f"{self.producers} producer{'s' * (self.producers > 1)}")
        parts.append(f"{self.consumers or 'no'} consumer{'s' * (self.consumers != 1)}")
        if self.type != "exclusive":
            parts.append(self.type)
        if self.subscriptions:
            parts.append(f"{self.subscriptions} subscription{'s' * (self.subscriptions > 1)}")
        if self.consumers and not self.latency:
            parts.append(f"received as {self.receive}")
        if self.compression != "none":
            parts.append(self.compression)
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)
