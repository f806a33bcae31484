"""What is known of a window from outside, in sets and dictionaries, and what must hold of it after every step."""

from typing import ClassVar

from dispatch_harness import POLICIES, Desk, accepts, key_hash
from hypothesis.stateful import RuleBasedStateMachine, invariant

from pydanube.core.dispatch import window as window_module
from pydanube.core.dispatch.keys import SLOTS
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.window import DeliveryWindow
from pydanube.model.topics import SubscriptionType


class WindowModel(RuleBasedStateMachine):
    """Model: who has what, what failed how often and where it is, what was delivered ever."""

    type = SubscriptionType.SHARED
    limits: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.normal = {name: getattr(window_module, name) for name in self.limits}
        for name, value in self.limits.items():
            setattr(window_module, name, value)
        self.policy = POLICIES[0]
        self.desk = Desk(self.type, self.policy, partition=1)
        self.settled: set[int] = set()
        self.out: dict[int, Member] = {}
        self.failed: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.dying: set[int] = set()
        self.blocked: set[int] = set()
        self.delivered: set[int] = set()
        self.rows_max: int | None = None
        self.batches_max = 1
        self.goes_straight = True
        self.published_us: dict[int, int] = {}

    @property
    def window(self) -> DeliveryWindow:
        return self.desk.window

    @property
    def is_single(self) -> bool:
        return self.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

    @property
    def is_keyed(self) -> bool:
        return self.type is SubscriptionType.KEY_SHARED

    def active(self) -> Member | None:
        members = self.window.members
        first = [one for one in members if one.priority == min(each.priority for each in members)]
        return sorted(first, key=lambda one: one.consumer)[1 % len(first)] if first else None

    # -- delivered ----------------------------------------------------------------------------------------------------

    def _skipped(self) -> None:
        """What is not stored any more is settled when its turn comes."""
        for offset in self.desk.stored.gone - self.settled:
            if self.window.cursor.is_settled(offset):
                self._settle([offset])

    def _delivered(self, member: Member, offset: int) -> None:
        stored, now_us = self.desk.stored, self.desk.now_us
        assert member in self.window.members
        assert offset in stored.keys and offset not in stored.gone
        assert offset not in self.settled, "settled"
        assert offset not in self.out, "on its way already"
        assert offset not in self.waiting and offset not in self.dying and offset not in self.blocked
        if self.is_single:
            assert member is self.active()
            assert offset in self.delivered or not any(one > offset for one in self.delivered), "order"
        elif offset not in self.failed:
            assert stored.deliver_at[offset] <= now_us or offset in self.delivered, "too early"
        if not self.is_keyed:
            assert not self.blocked
        else:
            self._delivered_by_key(member, offset)
        self.out[offset] = member
        self.delivered.add(offset)
        failure = self.window.failures.at(offset)
        assert (failure.count if failure else 0) == self.failed.get(offset, 0)

    def _delivered_by_key(self, member: Member, offset: int) -> None:
        key, keys = self.desk.stored.keys[offset], self.desk.stored.keys
        assert accepts(member, key)
        assert all(other is member for one, other in self.out.items() if keys[one] == key), "two have this key"
        if offset not in self.delivered:
            earlier = [one for one, its in keys.items() if one < offset and its == key and self._is_open(one)]
            late = [one for one in earlier if one not in self.delivered]
            at_us = max(self.desk.stored.deliver_at[offset], self.published_us[offset])
            assert all(self.desk.stored.deliver_at[one] > at_us for one in late), "order of a key"
            assert not any(one in self.failed for one in earlier), "an earlier one of this key failed"

    def _is_open(self, offset: int) -> bool:
        return offset not in self.settled and offset not in self.desk.stored.gone

    def _nothing_idles(self) -> None:
        """After the pump: whatever is not on its way has a reason."""
        window, stored = self.window, self.desk.stored
        if not any(member.has_room for member in window.members) or (self.blocked and not self.is_keyed):
            return
        active = self.active() if self.is_single else None
        if active is not None and not active.has_room:
            return
        idle = [
            offset
            for offset in stored.keys
            if offset not in self.settled
            and (offset not in stored.gone or offset < window.next_read)
            and offset not in self.out
            and not (offset in self.waiting or offset in self.dying or offset in self.blocked)
            and (self.is_single or offset in self.failed or stored.deliver_at[offset] <= self.desk.now_us)
            and (offset < window.next_read or not self.limits)
        ]
        if not self.is_keyed:
            assert not set(idle) - stored.gone
            return
        homeless = [one for one in idle if not any(accepts(each, stored.keys[one]) for each in window.members)]
        assert window.policy.unmatched == len(homeless)
        busy = {key_hash(stored.keys[one]) % SLOTS for one in self.out}
        for offset in set(idle) - set(homeless) - stored.gone:
            key = stored.keys[offset]
            takers = [one for one in window.members if accepts(one, key)]
            failed = any(stored.keys[one] == key and one < offset for one in self.failed)
            if all(one.has_room for one in takers) and key_hash(key) % SLOTS not in busy and not failed:
                raise AssertionError(f"{offset} could be delivered")

    # -- settled ------------------------------------------------------------------------------------------------------

    def _settle(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.settled.add(offset)
            for one in (self.out, self.failed, self.waiting):
                one.pop(offset, None)
            self.dying.discard(offset)
            self.blocked.discard(offset)

    def _start_over(self, settled: set[int]) -> None:
        self.settled = settled
        for one in (self.out, self.failed, self.waiting, self.dying, self.blocked, self.delivered):
            one.clear()

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def the_cursor_knows_what_is_settled(self) -> None:
        cursor, end = self.window.cursor, self.desk.stored.end
        settled = {offset for offset in range(end) if cursor.is_settled(offset)}
        assert settled - self.desk.stored.gone == self.settled - self.desk.stored.gone
        assert cursor.position == next(offset for offset in range(end + 1) if offset == end or offset not in settled)

    @invariant()
    def every_open_message_is_in_one_place(self) -> None:
        window, end = self.window, self.desk.stored.end
        assert window.unacked == len(self.out)
        for member in window.members:
            assert window.unacked_of(member) == sum(one is member for one in self.out.values())
        unread = sum(stop - start for start, stop in window.cursor.missing(window.next_read, end))
        ready = window._ready.count
        kept = window.policy.held + window.policy.unmatched + window.delayed
        failing = len(self.waiting) + len(self.dying) + len(self.blocked)
        missing = sum(stop - start for start, stop in window.cursor.missing(0, end))
        assert min(window.policy.held, window.policy.unmatched, window.delayed, unread) >= 0
        assert unread + ready + kept + failing + len(self.out) == missing

    @invariant()
    def failures_are_counted_until_they_are_settled(self) -> None:
        failures = self.window.failures
        counts = {offset: failed.count for offset in failures.offsets() if (failed := failures.at(offset)) is not None}
        assert counts == self.failed
        assert (failures.waiting, failures.blocked) == (len(self.waiting), len(self.blocked))
        if self.is_keyed:
            assert self.window.policy.blocked_keys == len({self.desk.stored.keys[one] for one in self.failed})
