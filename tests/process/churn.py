"""Consumer processes that come and go under load, and what can be said about all they received.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from churn_consumer import TYPES

WORKER = Path(__file__).with_name("churn_consumer.py")
FOREVER = float("inf")


@dataclass
class Took:
    """One message, as one session received it."""

    at: float
    partition: int
    offset: int
    key: str | None
    payload: str
    settled_at: float = FOREVER
    """When its ack was known to be durable; FOREVER: never."""


@dataclass(eq=False)
class Session:
    """One consumer, from when it attached to its end."""

    type: str
    attached_at: float
    took: list[Took] = field(default_factory=list)
    ended_at: float = FOREVER


class Process:
    """One consumer process. Its output is read to the end, also after it was killed."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, record: Record) -> None:
        self.name = name
        self.sessions: dict[int, Session] = {}
        self._process = process
        self._record = record
        self.attached = asyncio.Event()
        """Set once it is attached to every subscription that several consumers may share."""
        self.listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, url: str, topic: str, name: str, record: Record) -> Process:
        record.starts.append(time.monotonic())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(WORKER), url, topic, name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 << 20,
        )
        return cls(name, process, record)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # killed in the middle of it: nothing of it was acked
            self._hear(json.loads(line))
        ended = time.monotonic()
        for session in self.sessions.values():
            session.ended_at = ended

    def _hear(self, said: dict[str, Any]) -> None:
        if "attached" in said:
            session = self.sessions[said["attached"]] = Session(said["type"], time.monotonic())
            self._record.sessions.append(session)
            if {one.type for one in self.sessions.values()} >= set(TYPES) - {"exclusive"}:
                self.attached.set()
        elif "took" in said:
            rows = zip(said["offsets"], said["keys"], said["payloads"], strict=True)
            took = [Took(said["at"], said["partition"], *row) for row in rows]
            self.sessions[said["took"]].took += took
            self._record.received(self.sessions[said["took"]].type, took)
        else:
            for one in reversed(self.sessions[said["settled"]].took):
                if one.settled_at != FOREVER:
                    break
                one.settled_at = said["at"]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()
        await self.listening

    async def stop(self) -> None:
        """Stop the process with SIGTERM: it acks what it received before it ends."""
        self._process.terminate()
        await self.listening
        assert await self._process.wait() == 0, f"consumer {self.name} did not end well"


class Record:
    """Everything that happened to one topic."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        """Payloads, and when each was passed to the producer."""
        self.acked: set[str] = set()
        self.sessions: list[Session] = []
        self.starts: list[float] = []
        self.broker_kills: list[tuple[float, float]] = []
        self.seen: dict[str, set[str]] = {kind: set() for kind in TYPES}
        """The payloads that each subscription received; a subscription has the name of its type."""
        self.missing: dict[str, set[str]] = {kind: set() for kind in TYPES}
        """The payloads that were acked to the producer and that the subscription has not received."""
        self.progress = asyncio.Event()

    def published(self, payloads: list[str]) -> None:
        self.acked.update(payloads)
        for kind, missing in self.missing.items():
            missing.update(one for one in payloads if one not in self.seen[kind])
        self.progress.set()

    def received(self, kind: str, took: list[Took]) -> None:
        payloads = [one.payload for one in took]
        self.seen[kind].update(payloads)
        self.missing[kind].difference_update(payloads)
        self.progress.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached` returns True; it is called again whenever something was acked or received."""
        while not reached():
            self.progress.clear()
            await self.progress.wait()

    def by_time(self, kind: str) -> list[tuple[Session, Took]]:
        events = [(session, one) for session in self.sessions if session.type == kind for one in session.took]
        return sorted(events, key=lambda event: event[1].at)


def check_content(record: Record, kind: str) -> None:
    """Check that everything received was sent, and that each offset always had the same payload."""
    content: dict[tuple[int, int], str] = {}
    for _, one in record.by_time(kind):
        assert one.payload in record.sent, f"{kind}: {one.payload} was never sent"
        assert content.setdefault((one.partition, one.offset), one.payload) == one.payload, "an offset was used twice"


def check_order(record: Record, kind: str) -> None:
    """Check that in each session the first deliveries of a partition, or of a key, are in the order of their
    offsets."""
    if kind == "shared":
        return
    first_seen: set[tuple[int, int]] = set()
    last: dict[tuple[Session, object], int] = {}
    for session, one in record.by_time(kind):
        place = (one.partition, one.offset)
        if place in first_seen:
            continue
        first_seen.add(place)
        sequence = (session, (one.partition, one.key) if kind == "key-shared" else one.partition)
        before = last.get(sequence, -1)
        assert one.offset > before, f"{kind}: {one.payload} at {place} came after offset {before} of {sequence[1]}"
        last[sequence] = one.offset


def check_repetitions(record: Record, kind: str) -> int:
    """Check that every redelivery has a reason, such as a killed consumer or broker. Returns the number of
    redeliveries."""
    former: dict[tuple[int, int], tuple[Session, Took]] = {}
    repeated = 0
    for session, one in record.by_time(kind):
        place = (one.partition, one.offset)
        if place in former:
            repeated += 1
            held_by, before = former[place]
            why = _reason(record, kind, held_by, before, one.at)
            assert why, (
                f"{kind}: {one.payload} at {place} came again without a reason, {one.at - before.at:.3f} s later"
            )
        former[place] = (session, one)
    return repeated


def _reason(record: Record, kind: str, held_by: Session, before: Took, again_at: float) -> str | None:
    """Return why a message that was received may be redelivered; None: there is no reason."""
    sent_at, settled_at = record.sent[before.payload], before.settled_at
    if any(sent_at <= down and settled_at >= kill and again_at >= kill for kill, down in record.broker_kills):
        return "the broker died before it was settled"
    if settled_at == FOREVER and held_by.ended_at != FOREVER:
        return "its consumer went before it was settled"
    if kind == "failover" and any(sent_at <= again_at and settled_at >= start for start in record.starts):
        return "another consumer became the active one before it was settled"
    return None


def check_once(record: Record, kind: str) -> None:
    """Check that no message was received twice."""
    seen: set[str] = set()
    for _, one in record.by_time(kind):
        assert one.payload not in seen, f"{kind}: {one.payload} came twice"
        seen.add(one.payload)
