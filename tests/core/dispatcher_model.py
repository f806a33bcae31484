"""A model of a dispatcher in sets and dictionaries, and what must be true of the dispatcher after every step."""

from typing import ClassVar

from dispatch_harness import POLICIES, DispatchHarness, accepts, key_hash
from hypothesis.stateful import RuleBasedStateMachine, invariant

from pydanube.core.dispatch import dispatcher as dispatcher_module
from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.core.dispatch.key_table import SLOTS
from pydanube.core.dispatch.members import Member
from pydanube.model.topics import SubscriptionType


class DispatcherModel(RuleBasedStateMachine):
    """The expected state: the consumer of each offset in flight, failures and their states, and all offsets ever
    delivered."""

    type = SubscriptionType.SHARED
    limits: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.normal = {name: getattr(dispatcher_module, name) for name in self.limits}
        for name, value in self.limits.items():
            setattr(dispatcher_module, name, value)
        self.policy = POLICIES[0]
        self.harness = DispatchHarness(self.type, self.policy, partition=1)
        self.acked: set[int] = set()
        self.in_flight: dict[int, Member] = {}
        self.failed: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.dead_lettering: set[int] = set()
        self.blocked: set[int] = set()
        self.delivered: set[int] = set()
        self.rows_max: int | None = None
        self.batches_max = 1
        self.delivers_stored = True
        self.published_us: dict[int, int] = {}
        self.since_us: dict[int, int] = {}
        """When each message in flight was delivered."""
        self.reasons: dict[int, str] = {}
        self.given_up: set[int] = set()
        self.unacked_max = 0

    @property
    def dispatcher(self) -> Dispatcher:
        return self.harness.dispatcher

    @property
    def is_single(self) -> bool:
        return self.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

    @property
    def is_keyed(self) -> bool:
        return self.type is SubscriptionType.KEY_SHARED

    @property
    def taking_part(self) -> list[Member]:
        return [one for one in self.dispatcher.members if one in self.harness.taking_part]

    def active(self) -> Member | None:
        members = self.taking_part
        first = [one for one in members if one.priority == min(each.priority for each in members)]
        return sorted(first, key=lambda one: one.consumer)[1 % len(first)] if first else None

    # -- delivered ----------------------------------------------------------------------------------------------------

    def _skipped(self) -> None:
        """Record offsets that are not stored any more as acknowledged once the dispatcher skipped them."""
        for offset in self.harness.stored.gone - self.acked:
            if self.dispatcher.cursor.is_acked(offset):
                self._mark_acked([offset])

    def _delivered(self, member: Member, offset: int) -> None:
        stored, now_us = self.harness.stored, self.harness.now_us
        assert member in self.taking_part
        assert offset in stored.keys and offset not in stored.gone
        assert offset not in self.acked, "acked"
        assert offset not in self.in_flight, "in flight already"
        assert offset not in self.waiting and offset not in self.dead_lettering and offset not in self.blocked
        if self.is_single:
            assert member is self.active()
            assert offset in self.delivered or not any(one > offset for one in self.delivered), "order"
        elif offset not in self.failed:
            assert stored.deliver_at[offset] <= now_us or offset in self.delivered, "too early"
        if not self.is_keyed:
            assert not self.blocked
        else:
            self._delivered_by_key(member, offset)
        self.in_flight[offset] = member
        self.since_us[offset] = now_us
        assert not self.unacked_max or len(self.in_flight) <= self.unacked_max
        self.delivered.add(offset)
        counts, _ = self.dispatcher.failure_history([offset])
        assert counts == ([self.failed[offset]] if offset in self.failed else [])

    def _delivered_by_key(self, member: Member, offset: int) -> None:
        key, keys = self.harness.stored.keys[offset], self.harness.stored.keys
        assert accepts(member, key)
        assert all(other is member for one, other in self.in_flight.items() if keys[one] == key), "two have this key"
        if offset not in self.delivered:
            earlier = [one for one, its in keys.items() if one < offset and its == key and self._is_open(one)]
            late = [one for one in earlier if one not in self.delivered]
            at_us = max(self.harness.stored.deliver_at[offset], self.published_us[offset])
            assert all(self.harness.stored.deliver_at[one] > at_us for one in late), "order of a key"
            assert not any(one in self.failed for one in earlier), "an earlier one of this key failed"

    def _is_open(self, offset: int) -> bool:
        return offset not in self.acked and offset not in self.harness.stored.gone

    def _nothing_idles(self) -> None:
        """Check after the pump that every message that is not in flight has a reason."""
        dispatcher, stored = self.dispatcher, self.harness.stored
        if not any(member.can_receive for member in dispatcher.members) or (self.blocked and not self.is_keyed):
            return
        active = self.active() if self.is_single else None
        if active is not None and not active.can_receive:
            return
        if dispatcher.in_flight_max and len(self.in_flight) >= dispatcher.in_flight_max:
            return  # `unacked_max`, or the pace of acks after some came later than the ack timeout
        idle = [
            offset
            for offset in stored.keys
            if offset not in self.acked
            and (offset not in stored.gone or offset < dispatcher.next_read)
            and offset not in self.in_flight
            and not (offset in self.waiting or offset in self.dead_lettering or offset in self.blocked)
            and (self.is_single or offset in self.failed or stored.deliver_at[offset] <= self.harness.now_us)
            and (offset < dispatcher.next_read or not self.limits)
        ]
        if not self.is_keyed:
            assert not set(idle) - stored.gone
            return
        homeless = [one for one in idle if not any(accepts(each, stored.keys[one]) for each in self.taking_part)]
        assert dispatcher.counts.unmatched == len(homeless)
        busy = {key_hash(stored.keys[one]) % SLOTS for one in self.in_flight}
        for offset in set(idle) - set(homeless) - stored.gone:
            key = stored.keys[offset]
            takers = [one for one in self.taking_part if accepts(one, key)]
            failed = any(stored.keys[one] == key and one < offset for one in self.failed)
            if all(one.can_receive for one in takers) and key_hash(key) % SLOTS not in busy and not failed:
                raise AssertionError(f"{offset} could be delivered")

    # -- acked --------------------------------------------------------------------------------------------------------

    def _mark_acked(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.acked.add(offset)
            for one in (self.in_flight, self.failed, self.waiting):
                one.pop(offset, None)
            self.dead_lettering.discard(offset)
            self.given_up.discard(offset)
            self.blocked.discard(offset)

    def _start_over(self, acked: set[int]) -> None:
        self.acked = acked
        for one in (self.in_flight, self.failed, self.waiting, self.dead_lettering, self.blocked, self.delivered):
            one.clear()
        self.given_up.clear()

    def _is_exhausted(self, offset: int) -> bool:
        return offset in self.given_up or self.policy.is_exhausted(self.failed[offset])

    def _timed(self) -> dict[int, int]:
        """Return when each message was delivered whose ack timeout the broker counts."""
        return {offset: self.since_us[offset] for offset, member in self.in_flight.items() if member.is_timed}

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def the_cursor_knows_what_is_acked(self) -> None:
        cursor, end = self.dispatcher.cursor, self.harness.stored.end
        acked = {offset for offset in range(end) if cursor.is_acked(offset)}
        assert acked - self.harness.stored.gone == self.acked - self.harness.stored.gone
        assert cursor.position == next(offset for offset in range(end + 1) if offset == end or offset not in acked)

    @invariant()
    def every_open_message_is_in_one_place(self) -> None:
        dispatcher, end = self.dispatcher, self.harness.stored.end
        assert dispatcher.unacked == len(self.in_flight)
        for member in dispatcher.members:
            assert dispatcher.unacked_of(member) == sum(one is member for one in self.in_flight.values())
        unread = sum(stop - start for start, stop in dispatcher.cursor.missing(dispatcher.next_read, end))
        ready = dispatcher._ready.count
        kept = dispatcher.counts.held_back + dispatcher.counts.unmatched + dispatcher.counts.delayed
        failing = len(self.waiting) + len(self.dead_lettering) + len(self.blocked)
        missing = sum(stop - start for start, stop in dispatcher.cursor.missing(0, end))
        assert min(dispatcher.counts.held_back, dispatcher.counts.unmatched, dispatcher.counts.delayed, unread) >= 0
        assert unread + ready + kept + failing + len(self.in_flight) == missing

    @invariant()
    def timeouts_are_counted_for_what_is_in_flight(self) -> None:
        assert dict(self.dispatcher._timeouts._since_us) == self._timed()

    @invariant()
    def failures_are_counted_until_they_are_acked(self) -> None:
        counts, offsets = self.dispatcher.counts, list(range(self.harness.stored.end))
        failed, _ = self.dispatcher.failure_history(offsets)
        assert {offset: count for offset, count in zip(offsets, failed, strict=False) if count} == self.failed
        assert (counts.failed, counts.waiting, counts.blocked) == (
            len(self.failed),
            len(self.waiting),
            len(self.blocked),
        )
        if self.is_keyed:
            assert counts.blocked_keys == len({self.harness.stored.keys[one] for one in self.failed})
