"""Messages that should have been read and are gone: which ones, and why. A loss is always reported.

The option `failOnDataLoss` decides what happens to the query: it fails with the report, or it continues after the lost
offsets and the report is a warning in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydanube.model.errors import Refused
from pydanube.runtime.telemetry import get_logger

from .offsets import Offsets, TopicIdentity, TopicView, View

log = get_logger(__name__)

LISTED_MAX: Final = 50
"""The number of ranges that a report lists."""

REMEDY: Final = (
    "With failOnDataLoss=false the query goes on without them. A stream with a `subscription` keeps retention from "
    "removing what it has not read."
)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets [start, end) of a partition that cannot be read any more; end -1: all offsets from start on."""

    topic: str
    partition: int
    start: int
    end: int
    why: str

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        offsets = f"{self.start}..{self.end} ({self.count})" if self.end >= 0 else f"{self.start} and all behind it"
        return f"{self.topic}[{self.partition}] offsets {offsets}: {self.why}"


def lost_to_retention(topic: str, partition: int, start: int, end: int, first: int) -> LostRange | None:
    """Return the part of [start, end) before `first`, the current first offset of the partition; None: nothing."""
    if start >= min(end, first):
        return None
    why = f"retention or truncation removed them, the partition begins at {first} now"
    return LostRange(topic, partition, start, min(end, first), why)


def lost_of_range(topic: str, partition: int, start: int, end: int, view: TopicView) -> Iterable[LostRange]:
    """Yield the parts of [start, end) that lie outside the partition's current offsets in `view`."""
    first, last = view.starts[partition], view.ends[partition]
    if (lost := lost_to_retention(topic, partition, start, end, first)) is not None:
        yield lost
    if end > last:
        why = f"the partition ends at {last} now: its log came back shorter after a crash"
        yield LostRange(topic, partition, max(start, last), end, why)


def lost_of_topics(start: Offsets, view: View) -> list[LostRange]:
    """Return what a stream at `start` can never read, because its topic was deleted or created again."""
    found: list[LostRange] = []
    for name, known in start.topics.items():
        now = view.get(name)
        if now is not None and now.identity == known.identity:
            continue
        why = "the topic was deleted, or the option topic does not name it any more"
        if now is not None:
            why = replacement_reason(known.identity, now.identity)
        found.extend(LostRange(name, partition, offset, -1, why) for partition, offset in enumerate(known.offsets))
    return found


def replacement_reason(then: TopicIdentity, now: TopicIdentity) -> str:
    """Explain why the topic `then` is no longer the topic `now` of the same name."""
    if then.cluster != now.cluster:
        return (
            f"they were of cluster {then.cluster}, and this is {now.cluster}: the broker lost its data and began anew, "
            f"or the option servers names another one"
        )
    return f"the topic was deleted, and another was made under its name (id {then.topic_id} then, {now.topic_id} now)"


def format_report(losses: Sequence[LostRange], details: str = "") -> str:
    """Return the report for users: how many messages, which ones, why, and what to do."""
    known = sum(one.count for one in losses)
    open_ended = any(one.end < 0 for one in losses)
    amount = f"{known} messages" if not open_ended else f"at least {known} messages" if known else "messages"
    listed = [f"  {one}" for one in losses[:LISTED_MAX]]
    if len(losses) > LISTED_MAX:
        listed.append(f"  and {len(losses) - LISTED_MAX} ranges more")
    partitions = len({(one.topic, one.partition) for one in losses})
    where = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return "\n".join(
        [f"{amount} of {where} cannot be read any more:", *listed, *([details] if details else []), REMEDY]
    )


def fail_or_log(losses: Sequence[LostRange], fail: bool, details: str = "") -> None:
    """Raise Refused with the report if `fail`, else log it. Does nothing if there are no losses."""
    if not losses:
        return
    if fail:
        raise Refused(format_report(losses, details))
    for one in losses[:LISTED_MAX]:
        log.warning(
            "spark.messages_lost", topic=one.topic, partition=one.partition, start=one.start, end=one.end, why=one.why
        )
    if len(losses) > LISTED_MAX:
        log.warning("spark.messages_lost", ranges_more=len(losses) - LISTED_MAX)
