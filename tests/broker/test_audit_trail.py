"""The audit of a broker: what is kept and lost while it cannot be written, floods of failures, and sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from audit_harness import ListSink

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.security import audit
from pydanube.broker.security.audit import AuditTrail, EventWindows
from pydanube.broker.security.audit_operations import (
    TRAFFIC_SESSIONS_MAX,
    AuditedAuthorizer,
    Origin,
    TrafficSessions,
    count_traffic,
    note_change,
    note_detail,
    open_session,
)
from pydanube.core.access import ANONYMOUS, Action, AllowAll
from pydanube.core.access_rules import AccessRules
from pydanube.model.audit import AuditEvent
from pydanube.model.errors import DanubeError, Denied, NotFound, Unauthenticated
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.retry import LONGEST_SECONDS
from pydanube.runtime.tasks import Tasks

ORIGIN = Origin("native", "10.0.0.1", "user:alice", "api-key")
TOPIC = "/default/orders"


class FailingSink(ListSink):
    """Takes events while it has no `error`."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.tried = asyncio.Event()

    async def write(self, events: Sequence[AuditEvent]) -> None:
        self.tried.set()
        if self.error is not None:
            raise self.error
        await super().write(events)

    async def until_tried(self) -> None:
        self.tried.clear()
        async with asyncio.timeout(60):
            await self.tried.wait()


class Here:
    def __init__(self, tasks: Tasks, has_sessions: bool) -> None:
        self.clock, self.metrics, self.sink = ManualClock(), BrokerMetrics(), FailingSink()
        self.trail = AuditTrail("b", self.clock, self.metrics, has_sessions)
        self.trail.sink = self.sink
        self.audit = self.trail
        self.trail.start(tasks)

    def refuse(self, *operations: object) -> None:
        for one in operations:
            self.trail.refuse(ORIGIN, str(one), Action.READ, TOPIC, Denied("no"))

    async def take(self) -> list[AuditEvent]:
        return await self.sink.take(self, sessions=True)  # type: ignore[arg-type]


@asynccontextmanager
async def running(has_sessions: bool = True) -> AsyncIterator[Here]:
    async with Tasks() as tasks:
        here = Here(tasks, has_sessions)
        yield here
        await here.trail.close()


# -- operations --------------------------------------------------------------------------------------------------------


async def perform(here: Here, error: BaseException | None, *asked: tuple[Action, str]) -> list[AuditEvent]:
    """Run an operation that asks for something and ends with the error; return its events."""
    authorizer = AuditedAuthorizer(AllowAll())
    try:
        with here.trail.operation(ORIGIN, "Do"):
            for action, resource in asked:
                authorizer.check(ANONYMOUS, action, resource)
            if error is not None:
                raise error
    except (DanubeError, ZeroDivisionError, asyncio.CancelledError):
        pass
    return await here.take()


async def test_an_operation_is_one_event_at_most():
    async with running() as here:
        reading, changing = (Action.READ, TOPIC), (Action.DELETE, TOPIC)
        assert await perform(here, None, reading) == []
        assert await perform(here, NotFound("gone"), reading) == []
        (done,) = await perform(here, None, reading, changing, (Action.ADMINISTER, "/"))
        assert (done.kind, done.outcome, done.action, done.resource) == ("administration", "done", "delete", TOPIC)
        assert (done.principal, done.method, done.address, done.listener) == ("user:alice", "api-key", *ORIGIN[1::-1])
        assert (done.time, done.broker, done.operation) == ("2023-11-14T22:13:20.000000Z", "b", "Do")
        (failed,) = await perform(here, NotFound("gone"), changing, reading)
        assert (failed.outcome, failed.reason, failed.action) == ("failed", "NotFound: gone", "delete")
        (crashed,) = await perform(here, ZeroDivisionError("secret details"), changing)
        assert (crashed.outcome, crashed.reason) == ("failed", "ZeroDivisionError")
        (cancelled,) = await perform(here, asyncio.CancelledError(), changing)
        assert cancelled.reason == "CancelledError"
        (denied,) = await perform(here, Denied("no"), changing, reading)
        assert (denied.kind, denied.outcome, denied.action) == ("refused", "denied", "read")
        (stranger,) = await perform(here, Unauthenticated("who"), changing)
        assert (stranger.kind, stranger.outcome, stranger.reason) == ("security", "unauthenticated", "who")
        assert (stranger.principal, stranger.address) == ("", "10.0.0.1")
        assert here.metrics.audit_events["administration", "failed"] == 3


async def test_a_denied_check_is_not_a_change_even_if_it_is_caught():
    async with running() as here:
        authorizer = AuditedAuthorizer(AccessRules())
        with here.trail.operation(ORIGIN, "Do"), pytest.raises(Denied):
            authorizer.check(ANONYMOUS, Action.DELETE, TOPIC)
        assert await here.take() == []


async def test_tasks_of_an_operation_belong_to_it_and_later_ones_to_none():
    async with running() as here:
        with here.trail.operation(ORIGIN, "Do"):

            async def change() -> None:
                note_detail("a part of it")
                note_change(Action.CREATE, TOPIC)

            await asyncio.create_task(change())
        await change()
        (event,) = await here.take()
        assert (event.detail, event.action) == ("a part of it", "create")


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_session_is_two_events_and_its_operation_comes_first():
    async with running() as here:
        with here.trail.operation(ORIGIN, "OpenProducer"):
            note_change(Action.CREATE, TOPIC)
            session = open_session(Action.PRODUCE, TOPIC, 3)
            note_change(Action.DELETE, TOPIC)
        assert session is not None
        session.messages, session.bytes = 5, 500
        session.end(Denied("no more"))
        session.end()
        created, opened, ended = await here.take()
        assert (created.kind, created.action) == ("administration", "create")
        assert (opened.phase, ended.phase) == ("opened", "ended") and opened.session == ended.session != ""
        assert (ended.messages, ended.bytes, ended.partition, ended.outcome) == (5, 500, 3, "denied")
        assert ended.operation == "OpenProducer" and ended.reason == "Denied: no more" and opened.messages is None


async def test_sessions_can_be_left_out():
    async with running(has_sessions=False) as here:
        with here.trail.operation(ORIGIN, "Fetch"):
            assert open_session(Action.PRODUCE, TOPIC) is None
            count_traffic(Action.READ, TOPIC, 1, 1)
            count_traffic(Action.READ, TOPIC, 1, 1)
        assert await here.take() == []


async def test_traffic_without_a_consumer_is_one_session_until_it_is_silent():
    async with running() as here:
        for _ in range(3):
            with here.trail.operation(ORIGIN, "publishMessages"):
                count_traffic(Action.PRODUCE, TOPIC, 2, 10)
        (opened,) = await here.take()
        assert opened.phase == "opened"
        for _ in range(8):
            here.clock.advance(audit.ROUND_S)
            await asyncio.sleep(0)
        (ended,) = await here.take()
        assert (ended.phase, ended.messages, ended.bytes) == ("ended", 6, 30)


async def test_a_connection_has_a_limited_number_of_sessions():
    async with running() as here:
        traffic = TrafficSessions()
        for number in range(TRAFFIC_SESSIONS_MAX + 1):
            traffic.count(here.trail, ORIGIN, "Fetch", Action.READ, f"/default/{number}", 1, 1)
        events = await here.take()
        assert [one.resource for one in events if one.phase == "ended"] == ["/default/0"]
        traffic.end_all()
        assert len(await here.take()) == TRAFFIC_SESSIONS_MAX


async def test_a_broker_that_stops_ends_all_sessions_and_writes_everything():
    async with Tasks() as tasks:
        here = Here(tasks, has_sessions=True)
        with here.trail.operation(ORIGIN, "Subscribe"):
            session = open_session(Action.CONSUME, TOPIC)
        assert session is not None
        session.counts = lambda: (7, 70)
        await here.trail.close()
        assert here.sink.is_closed
        assert [(one.phase, one.messages, one.bytes) for one in here.sink.events] == [
            ("opened", None, None),
            ("ended", 7, 70),
        ]
        assert "the broker stops" in here.sink.events[1].reason


# -- writing -----------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_written_waits_and_is_written_in_order(monkeypatch):
    async with running() as here:
        here.sink.error = OSError(28, "No space left on device")
        here.refuse("first")
        await here.sink.until_tried()
        await asyncio.sleep(0)
        assert "audit events cannot be written" in here.trail.trouble and "No space left" in here.trail.trouble
        here.refuse("second")
        here.sink.error = None
        here.clock.advance(LONGEST_SECONDS)
        assert [one.operation for one in await here.take()] == ["first", "second"]
        assert here.trail.trouble == "" and here.metrics.audit_lost == 0


async def test_events_beyond_the_queue_are_counted_as_lost_and_told_later(monkeypatch):
    monkeypatch.setattr(audit, "QUEUE_MAX", 5)
    async with running() as here:
        here.sink.error = OSError(28, "No space left on device")
        here.refuse(*range(8))
        await here.sink.until_tried()
        await asyncio.sleep(0)
        assert here.metrics.audit_lost == 3 and "3 are lost" in here.trail.trouble
        assert here.metrics.audit_events["refused", "denied"] == 8
        here.sink.error = None
        here.clock.advance(LONGEST_SECONDS)
        await here.sink.until_tried()
        events = await here.take()
        assert [one.operation for one in events] == ["0", "1", "2", "3", "4", audit.LOSE_EVENTS]
        assert events[-1].reason == "3 audit events were lost before this one"


async def test_a_broker_stops_although_its_events_cannot_be_written():
    async with Tasks() as tasks:
        here = Here(tasks, has_sessions=True)
        here.sink.error = OSError(5, "Input/output error")
        here.refuse("first")
        await here.sink.until_tried()
        closing = asyncio.create_task(here.trail.close())
        await asyncio.sleep(0)
        here.clock.advance(LONGEST_SECONDS)
        async with asyncio.timeout(60):
            await closing
        assert here.metrics.audit_lost == 1 and here.sink.is_closed


async def test_without_a_sink_nothing_is_recorded():
    trail = AuditTrail("b", ManualClock(), metrics := BrokerMetrics())
    with trail.operation(ORIGIN, "Do") as operation:
        note_change(Action.DELETE, TOPIC)
        assert open_session(Action.READ, TOPIC) is None
        operation.settle()
    trail.refuse(ORIGIN, "Do", Action.READ, TOPIC, Denied("no"))
    trail.authentication_failed(ORIGIN, "Do", "why")
    await trail.close()
    assert not metrics.audit_events and trail.trouble == ""


# -- failed authentication ---------------------------------------------------------------------------------------------


async def test_a_flood_of_failures_is_few_events_and_a_number():
    async with running() as here:
        for _ in range(1000):
            here.trail.authentication_failed(Origin("http", "10.0.0.9"), "authenticate", "it has expired")
        here.trail.authentication_failed(Origin("http", "10.0.0.8"), "authenticate", "it has expired")
        events = await here.take()
        assert [one.address for one in events] == ["10.0.0.9"] * audit.FAILURES_MAX + ["10.0.0.8"]
        assert {(one.kind, one.outcome, one.reason) for one in events} == {
            ("security", "unauthenticated", "it has expired")
        }
        for _ in range(7):
            here.clock.advance(audit.ROUND_S)
            await asyncio.sleep(0)
        (told,) = await here.take()
        assert (told.address, told.reason) == ("10.0.0.9", f"{1000 - audit.FAILURES_MAX} more failures within 60 s")


def test_many_failing_addresses_share_what_is_left():
    windows = EventWindows(audit.FAILURES_MAX, audit.FAILING_ADDRESSES_MAX, "other addresses")
    recorded = sum(windows.add(f"10.0.{number // 250}.{number % 250}", 0.0) for number in range(5000))
    assert recorded == audit.FAILING_ADDRESSES_MAX + audit.FAILURES_MAX
    assert windows.close(1.0) == []
    assert [(one.key, one.events) for one in windows.close()] == [("other addresses", 5000 - recorded)]


# -- refused operations ------------------------------------------------------------------------------------------------


async def test_a_flood_of_refusals_is_some_events_of_its_principal_and_a_number():
    """Neither what others are refused nor what is allowed is summed, whoever does it."""
    bob = Origin("http", "10.0.0.9", "user:bob", "api-key")
    async with running(has_sessions=False) as here:
        begun = here.clock.now_us()
        for number in range(5000):
            here.refuse("Fetch") if number % 2 else _deny(here.trail, ORIGIN)
            if not number % 100:
                await asyncio.sleep(0)
                here.clock.advance(0.001)
        _deny(here.trail, bob)
        with here.trail.operation(ORIGIN, "CreateTopic"):
            note_change(Action.CREATE, TOPIC)
        events = await here.take()
        assert [one.principal for one in events] == ["user:alice"] * audit.REFUSALS_MAX + ["user:bob", "user:alice"]
        assert (events[-1].kind, events[-1].outcome) == ("administration", "done")
        ended = here.clock.now_us()
        for _ in range(7):
            here.clock.advance(audit.ROUND_S)
            await asyncio.sleep(0)
        (told,) = await here.take()
        assert (told.kind, told.operation, told.principal) == ("refused", "moreRefusals", "user:alice")
        found = re.fullmatch(r"(\d+) more refusals of user:alice between (\S+)Z and (\S+)Z", told.reason)
        assert found is not None and int(found[1]) == 5000 - audit.REFUSALS_MAX
        first, last = (int(datetime.fromisoformat(one + "+00:00").timestamp() * 1e6) for one in found.groups()[1:])
        assert begun <= first < last <= ended
        here.refuse("Fetch")  # a new window
        assert [one.operation for one in await here.take()] == ["Fetch"]


def _deny(trail: AuditTrail, origin: Origin) -> None:
    with pytest.raises(Denied), trail.operation(origin, "DeleteTopic"):
        raise Denied("no")
