"""The dispatcher of all four subscription types against a model of sets and dictionaries, in any order of events.

After every step: nothing is lost, nothing acknowledged is delivered, nothing is in flight twice; order, credit and
counts are right. In the end every consumer gets credit and acks, time passes, and everything must be acknowledged.

Hypothesis prints what replays a failure. More of it: DISPATCHER_EXAMPLES=2000, with any --hypothesis-seed.
"""

import os

import pytest
from dispatch_harness import FILTERS, KEYS, MS, PLENTY, POLICIES, SMALL, offsets_of, ranges_of
from dispatcher_model import DispatcherModel
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from exhaustive import several
from pydanube.core.dispatch import dispatcher as dispatcher_module
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.ranges import merged
from pydanube.model.errors import Refused
from pydanube.model.failure import ACK_TIMEOUT, Poison
from pydanube.model.topics import SubscriptionType

EXAMPLES = int(os.environ.get("DISPATCHER_EXAMPLES", several(6, 40)))
PHASES = [one for one in Phase if one is not Phase.explain]
STEPS = int(os.environ.get("DISPATCHER_STEPS", "40"))

names = st.sampled_from("abcd")
spots = st.integers(0, 400)
"""Positions in the stream, modulo its end."""


class DispatcherMachine(DispatcherModel):
    """Everything that can happen to a dispatcher, in any order."""

    @initialize(
        policy=st.sampled_from(POLICIES), messages=st.sampled_from([4, 20, PLENTY]), filters=st.sampled_from(FILTERS)
    )
    def begin(self, policy, messages, filters):
        """Begin with consumers and messages, because most runs would be over before there are any."""
        self.set_policy(policy)
        self.attach("a", 0, (), messages)
        self.attach("b", 0, filters, messages)
        self.publish_many(20)
        self.deliver()

    # -- the stream ----------------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12),
        delays=st.lists(st.sampled_from([0, 0, 0, 5, 30]), min_size=12, max_size=12),
        delayed=st.sampled_from([False, False, True]),
        producer=st.sampled_from("pq"),
    )
    def publish(self, keys, delays, delayed, producer):
        times = [self.harness.now_us + one * MS if one else 0 for one in delays[: len(keys)]]
        self._published(self.harness.stored.publish(keys, times if delayed else None, producer))

    @rule(count=st.integers(100, 150))
    def publish_many(self, count):
        self._published(self.harness.stored.publish([KEYS[number % 5] for number in range(count)]))

    def _published(self, base: int) -> None:
        self.published_us |= dict.fromkeys(range(base, self.harness.stored.end), self.harness.now_us)

    @rule(offsets=st.integers(1, 5))
    def leave_gap(self, offsets):
        self.harness.stored.leave_gap(offsets)

    @precondition(lambda self: self.harness.stored.batches)
    @rule()
    def trim(self):
        base, end, _ = self.harness.stored.batches[0]
        if not any(base <= offset < end for offset in [*self.in_flight, *self.dead_lettering]):
            self.harness.stored.trim()

    # -- consumers -----------------------------------------------------------------------------------------------------

    def member(self, name: str) -> Member | None:
        return next((one for one in self.dispatcher.members if one.consumer == name), None)

    @rule(
        name=names,
        priority=st.integers(0, 1),
        filters=st.sampled_from(FILTERS),
        messages=st.sampled_from([0, 1, 3, 10, PLENTY]),
        is_timed=st.booleans(),
    )
    def attach(self, name, priority, filters, messages, is_timed=False):
        former, active = self.member(name), self.active()
        if self.type is SubscriptionType.EXCLUSIVE and former is None and self.dispatcher.members:
            with pytest.raises(Refused):
                self.dispatcher.attach(name, priority)
            return
        member, ended = self.harness.attach(name, priority, filters if self.is_keyed else (), is_timed)
        assert ended is former
        self._gave_back([former], active)
        self._credit(member, messages, PLENTY)

    def _credit(self, member, messages, size_bytes):
        active = self.active()
        self.harness.credit(member, messages, size_bytes)
        self._gave_back([], active)

    @precondition(lambda self: self.dispatcher.members)
    @rule(pick=st.integers(0, 3))
    def detach(self, pick):
        member, active = self.dispatcher.members[pick % len(self.dispatcher.members)], self.active()
        self.dispatcher.detach(member)
        self.dispatcher.detach(member)
        self._gave_back([member], active)

    @precondition(lambda self: self.dispatcher.members)
    @rule(pick=st.integers(0, 3), count=st.integers(0, 4))
    def detach_several(self, pick, count):
        gone, active = self.dispatcher.members[pick : pick + count], self.active()
        self.dispatcher.detach(*gone)
        self._gave_back(gone, active)

    def _gave_back(self, gone: list[Member | None], active: Member | None) -> None:
        if self.is_single and self.active() is not active:
            self.in_flight.clear()
        self.in_flight = {offset: member for offset, member in self.in_flight.items() if member not in gone}

    @precondition(lambda self: self.dispatcher.members)
    @rule(pick=st.integers(0, 3), messages=st.integers(0, 12), size_bytes=st.sampled_from([0, 1, PLENTY]))
    def credit(self, pick, messages, size_bytes):
        self._credit(self.dispatcher.members[pick % len(self.dispatcher.members)], messages, size_bytes)

    @precondition(lambda self: self.dispatcher.members)
    @rule(pick=st.integers(0, 3))
    def pause_or_resume(self, pick):
        member = self.dispatcher.members[pick % len(self.dispatcher.members)]
        member.paused = not member.paused
        if not member.paused:
            self._credit(member, 0, 0)

    # -- delivering ----------------------------------------------------------------------------------------------------

    @rule()
    def deliver(self):
        """Deliver everything that is possible, like the broker's pump."""
        while (at_us := self.dispatcher.next_timeout_us) is not None and at_us <= self.harness.now_us:
            self._time_out()
        for _ in range(1000 + 10 * self.harness.stored.end):
            if self.dispatcher.has_due(self.harness.now_us):
                self._due()
            wanted = self.dispatcher.offset_to_read
            if wanted is not None and wanted < self.harness.stored.end:
                self._offer(wanted)
            elif not self.dispatcher.has_due(self.harness.now_us):
                break
        else:
            raise AssertionError("no progress")
        assert (
            self.dispatcher.next_due_us is None
            or self.dispatcher.next_due_us > self.harness.now_us
            or self.dispatcher._ready
        )
        self._nothing_idles()

    def _offer(self, wanted: int) -> None:
        dispatcher, stored = self.dispatcher, self.harness.stored
        assert any(member.can_receive for member in dispatcher.members)
        found = stored.stretch_at(wanted, self.batches_max if dispatcher._policy.splits_batches else 1)
        if found is None:
            dispatcher.skip_to(stored.end)
            self._skipped()
            return
        base, end, batch = found
        if (
            self.delivers_stored
            and self.rows_max is None
            and dispatcher.next_read == base
            and dispatcher.sole_consumer is not None
        ):
            self._assign_stored(dispatcher.sole_consumer, base, end, len(batch.view))
            return
        credit = {member: member.messages if member.can_receive else 0 for member in dispatcher.members}
        assignments = dispatcher.offer(batch, base, end, self.harness.now_us, stored.end - end, self.rows_max)
        self._skipped()
        assert self.rows_max is None or sum(one.rows for one in assignments) <= self.rows_max
        for one in assignments:
            offsets = offsets_of(one, base)
            assert offsets == sorted(set(offsets))
            assert one.rows == len(offsets) > 0
            assert credit[one.member] > 0
            assert self.is_single or len(offsets) <= credit[one.member]
            assert one.member.messages == credit[one.member] - len(offsets)
            for offset in offsets:
                self._delivered(one.member, offset)

    def _assign_stored(self, member: Member, base: int, end: int, size_bytes: int) -> None:
        assert member is self.active() and member.can_receive
        messages = member.messages
        self.dispatcher.assign_stored(member, end, size_bytes, self.harness.now_us)
        assert member.messages == messages - (end - base)
        for offset in range(base, end):
            self._delivered(member, offset)

    @rule(delivers_stored=st.booleans())
    def set_delivers_stored(self, delivers_stored):
        """Switch on or off that a sole consumer is assigned whole stored batches."""
        self.delivers_stored = delivers_stored

    @rule(unacked_max=st.sampled_from([0, 0, 1, 5, 40]))
    def limit_unacked(self, unacked_max):
        self.unacked_max = self.dispatcher.unacked_max = 0
        self.deliver()
        if unacked_max:  # so that what is in flight already is within the limit
            self._ack(ranges_of(sorted(self.in_flight)[unacked_max:]))
        self.unacked_max = self.dispatcher.unacked_max = unacked_max

    @rule(rows_max=st.sampled_from([None, None, 1, 2, 7, 30]))
    def limit_rows(self, rows_max):
        self.rows_max = rows_max

    @rule(batches_max=st.sampled_from([1, 2, 5, 100]))
    def join_batches(self, batches_max):
        self.batches_max = batches_max

    @rule()
    def deliver_again(self):
        """Deliver more often than other rules run: the broker does it after every event."""
        self.deliver()

    @rule(milliseconds=st.integers(1, 30))
    def wait_and_deliver(self, milliseconds):
        self.harness.wait(milliseconds)
        self.deliver()

    # -- acking --------------------------------------------------------------------------------------------------------

    def _ack(self, ranges: list[tuple[int, int]]) -> None:
        offsets = {offset for start, end in ranges for offset in range(start, end)}
        known = {offset for offset in offsets if self.dispatcher.cursor.is_acked(offset)}
        assert known - self.harness.stored.gone == (offsets & self.acked) - self.harness.stored.gone
        assert self.dispatcher.ack(merged(ranges)) == len(offsets - known)
        self._mark_acked(list(offsets))

    @precondition(lambda self: self.in_flight)
    @rule(step=st.integers(1, 4), skip=st.integers(0, 5), shuffle=st.booleans())
    def ack_delivered(self, step, skip, shuffle):
        ranges = ranges_of(sorted(self.in_flight)[skip::step])
        self._ack(ranges[::-1] if shuffle else ranges)

    @precondition(lambda self: self.in_flight)
    @rule(pick=spots)
    def ack_one(self, pick):
        offset = sorted(self.in_flight)[pick % len(self.in_flight)]
        self._ack([(offset, offset + 1)])

    @rule(start=spots, count=st.integers(0, 40))
    def ack_anything(self, start, count):
        start = start % (self.harness.stored.end + 1)
        self._ack([(start, min(start + count, self.harness.stored.end))])

    @rule(spans=st.lists(st.tuples(spots, st.integers(-1, 9)), max_size=5))
    def ack_overlapping(self, spans):
        end = self.harness.stored.end
        self._ack([(start % (end + 1), min(start % (end + 1) + count, end)) for start, count in spans])

    @rule(start=spots, step=st.integers(2, 3))
    def ack_scattered(self, start, step):
        end = self.harness.stored.end
        self._ack([(offset, offset + 1) for offset in range(start % (end + 1), end, step)])

    @rule(end=spots)
    def ack_cumulative(self, end):
        if not self.is_single:
            with pytest.raises(Refused):
                self.dispatcher.check_cumulative()
            return
        self.dispatcher.check_cumulative()
        self._ack([(self.dispatcher.cursor.position, end % (self.harness.stored.end + 1))])

    # -- failing -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.in_flight)
    @rule(skip=st.integers(0, 8), count=st.integers(1, 5), delay_ms=st.sampled_from([None, None, 0, 7]))
    def nack_delivered(self, skip, count, delay_ms):
        self._nack(ranges_of(sorted(self.in_flight)[skip : skip + count]), delay_ms)

    @rule(start=spots, count=st.integers(1, 20), delay_ms=st.sampled_from([None, 0, 7]))
    def nack_anything(self, start, count, delay_ms):
        start = start % (self.harness.stored.end + 1)
        self._nack([(start, start + count), (start, start + 1)], delay_ms)

    @precondition(lambda self: self.in_flight)
    @rule(skip=st.integers(0, 8), delay_ms=st.sampled_from([0, 7, 10**9]))
    def nack_bounded(self, skip, delay_ms):
        """Nack with a delay that counts only between the policy's delay and its maximum."""
        for offset in sorted(self.in_flight)[skip : skip + 2]:
            wait_ms = min(
                max(self.policy.next_delay_ms(self.failed.get(offset, 0) + 1), delay_ms), self.policy.delay_max_ms
            )
            self._nack([(offset, offset + 1)], wait_ms, wanted_ms=delay_ms)

    @precondition(lambda self: self.in_flight)
    @rule(skip=st.integers(0, 8), count=st.integers(1, 2))
    def give_up(self, skip, count):
        offsets = sorted(self.in_flight)[skip : skip + count]
        exhausted = self.dispatcher.give_up(ranges_of(offsets), "given up")
        expected = set()
        for offset in offsets:
            del self.in_flight[offset]
            if len(self.failed) >= 2 * dispatcher_module.FAILED_MAX and offset not in self.failed:
                continue  # there are too many failures to count this one
            expected.add(offset)
            self.failed[offset] = self.failed.get(offset, 0) + 1
            self.given_up.add(offset)
            self.reasons[offset] = "given up"
        self._exhausted(exhausted, expected)

    @precondition(lambda self: self.in_flight)
    @rule(skip=st.integers(0, 8), count=st.integers(1, 5))
    def give_back(self, skip, count):
        """Give back what a listener kept and did not send: that is no failure."""
        for offset in sorted(self.in_flight)[skip : skip + count]:
            self.dispatcher.give_back([(offset, offset + 1)], self.in_flight.pop(offset))

    def _time_out(self) -> None:
        by_time = sorted((since_us, offset) for offset, since_us in self._timed().items())
        assert self.dispatcher.next_timeout_us == by_time[0][0] + self.policy.ack_timeout_ms * MS
        before = self.harness.now_us - self.policy.ack_timeout_ms * MS
        exhausted = self.dispatcher.fail_timed_out(self.harness.now_us)
        late = {offset for since_us, offset in by_time if since_us <= before}
        taken = late - set(self.dispatcher._timeouts._since_us)
        assert len(taken) == min(len(late), dispatcher_module.DUE_AT_ONCE)
        self._failed(sorted(taken), None, ACK_TIMEOUT, exhausted)

    def _nack(self, ranges: list[tuple[int, int]], delay_ms: int | None, wanted_ms: int | None = None) -> None:
        offsets = dict.fromkeys(offset for start, end in ranges for offset in range(start, end))
        is_bounded = wanted_ms is not None
        sent_ms = wanted_ms if is_bounded else delay_ms
        exhausted = self.dispatcher.nack(ranges, self.harness.now_us, sent_ms, "why", bounded=is_bounded)
        self._failed(list(offsets), delay_ms, "why", exhausted)

    def _failed(self, offsets: list[int], delay_ms: int | None, reason: str, exhausted) -> None:
        expected = set()
        for offset in [one for one in offsets if one in self.in_flight]:
            del self.in_flight[offset]
            if len(self.failed) >= 2 * dispatcher_module.FAILED_MAX and offset not in self.failed:
                continue  # there are too many failures to count this one
            self.failed[offset] = count = self.failed.get(offset, 0) + 1
            self.reasons[offset] = reason
            if self.policy.is_exhausted(count):
                expected.add(offset)
            else:
                wait_ms = self.policy.next_delay_ms(count) if delay_ms is None else delay_ms
                self.waiting[offset] = self.harness.now_us + wait_ms * MS
        self._exhausted(exhausted, expected)

    def _exhausted(self, exhausted, expected: set[int]) -> None:
        assert sorted(one.offset for one in exhausted) == sorted(expected)
        for one in exhausted:
            assert (one.poison, one.attempts) == (self.policy.poison, self.failed[one.offset])
            assert one.reason == self.reasons[one.offset]
            if one.poison is Poison.BLOCK:
                self.blocked.add(one.offset)
            else:
                self.dead_lettering.add(one.offset)
            if one.poison is Poison.DROP:
                self._ack([(one.offset, one.offset + 1)])

    @precondition(lambda self: self.dead_lettering)
    @rule(works=st.booleans())
    def dead_letter(self, works):
        offset = min(self.dead_lettering)
        if works:
            self._ack([(offset, offset + 1)])
        else:
            due_us = self.harness.now_us + 3 * MS
            self.dispatcher.retry_dead_letter(offset, due_us)
            self.dead_lettering.discard(offset)
            self.waiting[offset] = due_us

    @rule(policy=st.sampled_from(POLICIES))
    def set_policy(self, policy):
        self.policy = policy
        exhausted = self.dispatcher.set_failure_policy(policy)
        expected = {offset for offset in self.blocked if policy.is_exhausted(self.failed[offset])}
        self.given_up -= self.blocked
        self.blocked.clear()
        self._exhausted(exhausted, expected)

    @rule(milliseconds=st.integers(1, 30))
    def time_passes(self, milliseconds):
        self.harness.wait(milliseconds)

    def _due(self) -> None:
        now_us = self.harness.now_us
        by_time = sorted((due_us, offset) for offset, due_us in self.waiting.items() if due_us <= now_us)
        ended = {offset for _, offset in by_time[: dispatcher_module.DUE_AT_ONCE]}
        expected = {offset for offset in ended if self._is_exhausted(offset)}
        for offset in ended:
            del self.waiting[offset]
        self._exhausted(self.dispatcher.release_due(now_us), expected)

    # -- moving --------------------------------------------------------------------------------------------------------

    @rule(position=spots)
    def seek(self, position):
        position %= self.harness.stored.end + 1
        self.dispatcher.seek(position, self.dispatcher.cursor.generation + 1)
        self._start_over(set(range(position)))

    @rule()
    def restart(self):
        """Start a new dispatcher, as a new owner of the partition does: it knows only what was acked."""
        cursor = self.dispatcher.cursor
        again = Cursor(cursor.position, cursor.acked, cursor.generation)
        self.harness.dispatcher = Dispatcher(self.type, again, self.policy, 1)
        self.dispatcher.unacked_max = self.unacked_max
        self._start_over(set(self.acked))

    def teardown(self) -> None:
        """Give every consumer credit and let time pass: everything must be acknowledged in the end."""
        try:
            self.unacked_max = self.dispatcher.unacked_max = 0
            if not self.dispatcher.members or self.is_keyed:
                self.attach("z", 0, (), PLENTY)
            for member in self.dispatcher.members:
                member.paused = False
                self.harness.credit(member, PLENTY, PLENTY)
            for _ in range(300):
                if self.dispatcher.cursor.position == self.harness.stored.end:
                    break
                self.set_policy(POLICIES[0])  # each time: a message that was given up is blocked again
                self._ack(ranges_of(sorted(self.dead_lettering)))
                self.harness.wait(50)
                self.deliver()
                self.every_open_message_is_in_one_place()
                self._ack(ranges_of(sorted(self.in_flight)))
                self.deliver()
            assert self.dispatcher.cursor.position == self.harness.stored.end, "something is never delivered"
        finally:
            for name, value in self.normal.items():
                setattr(dispatcher_module, name, value)


def machine(subscription_type: SubscriptionType, limits: dict[str, int]):
    """Return a test case for one type, with the limits of production or small ones."""
    one = type("Machine", (DispatcherMachine,), {"type": subscription_type, "limits": limits})
    case = one.TestCase
    case.settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        phases=PHASES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case


TestExclusive = machine(SubscriptionType.EXCLUSIVE, {})
TestExclusiveWithSmallLimits = machine(SubscriptionType.EXCLUSIVE, SMALL)
TestFailover = machine(SubscriptionType.FAILOVER, {})
TestFailoverWithSmallLimits = machine(SubscriptionType.FAILOVER, SMALL)
TestShared = machine(SubscriptionType.SHARED, {})
TestSharedWithSmallLimits = machine(SubscriptionType.SHARED, SMALL)
TestKeyShared = machine(SubscriptionType.KEY_SHARED, {})
TestKeySharedWithSmallLimits = machine(SubscriptionType.KEY_SHARED, SMALL)
