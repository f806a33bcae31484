"""Pending batches against a broker that forgets, refuses and disappears: each message at most once, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from pydanube.client.producing.pending_batches import InFlightBatch, MessageRows, PendingBatches
from pydanube.codec.batch import Batch, Codec
from pydanube.model.errors import DanubeError, Full, Invalid, Refused, Unavailable

POISON = b"poison"


def ignore() -> None:
    """Do nothing: these tests send batches themselves."""


@dataclass
class Partition:
    """A model of one partition: its log, and the producers it remembers, by the rules of `core.producers`."""

    log: list[bytes] = field(default_factory=list)
    producers: dict[tuple[int, int], tuple[int, dict[int, int]]] = field(default_factory=dict)

    def publish(self, data: bytes, trouble: DanubeError | None) -> tuple[int, bool] | DanubeError:
        batch = Batch.open(bytes(data))
        header = batch.header
        if any(payload.startswith(POISON) for payload in batch.payloads):
            return Invalid("poison")
        key = (header.producer_id, header.producer_epoch)
        known = self.producers.get(key)
        if known is None:
            if header.first_sequence > 0:
                return Refused("not remembered")
            known = (0, {})
        expected, offsets = known
        if header.first_sequence > expected:
            return Unavailable("a gap")
        if header.first_sequence < expected:
            return offsets[header.first_sequence], True
        if trouble is not None:
            return trouble
        offset = len(self.log)
        self.log += batch.payloads
        self.producers[key] = (expected + len(batch), {**offsets, header.first_sequence: offset})
        return offset, False


class Simulation:
    """A producer whose connections break, and whose answers come late or never."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.broker = Partition()
        self.batches = PendingBatches(self.random.randint(1, 4), 10_000, "", Codec.NONE, ignore, self.on_settled)
        self.identities = 0
        self.wire: deque[InFlightBatch] = deque()
        self.answers: deque[tuple[InFlightBatch, tuple[int, bool] | DanubeError]] = deque()
        self.number = 0
        self.now = 0.0
        self.placed: dict[bytes, int] = {}
        self.failed: dict[bytes, DanubeError] = {}
        self.duplicates = 0
        self.new_identity()

    def on_settled(self, rows: MessageRows, base: int, duplicate: bool, error: DanubeError | None) -> None:
        self.duplicates += duplicate
        for row, payload in enumerate(rows.payloads):
            assert payload not in self.placed and payload not in self.failed
            if error is None:
                self.placed[payload] = base + row
            else:
                self.failed[payload] = error

    def new_identity(self) -> None:
        self.identities += 1
        self.batches.renew(self.identities, 1)

    def pump(self) -> None:
        batches = self.batches
        if batches.refusal is not None and batches.sent_count == 0:
            batches.resend_refused()
        while batches.refusal is None:
            if batches.unsent is None and (len(batches.in_flight) >= 5 or not batches.take()):
                break
            self.wire.append(batches.mark_sent())
        if batches.broken and batches.renewable:
            self.new_identity()

    # -- what can happen ---------------------------------------------------------------------------------------------

    def add(self) -> None:
        self.now += 1
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            payload = b"%b%d" % (POISON if self.random.random() < 0.05 else b"m", self.number)
            self.batches.add(payload, None, None, 1, 10, self.now)

    def send(self) -> None:
        self.batches.close_filling()
        self.pump()

    def arrive(self, trouble: DanubeError | None = None) -> None:
        if self.wire:
            batch = self.wire.popleft()
            self.answers.append((batch, self.broker.publish(batch.data, trouble)))

    def arrive_in_trouble(self) -> None:
        self.arrive(self.random.choice([Unavailable("disk"), Full("full")]))

    def answer(self) -> None:
        if self.answers:
            batch, result = self.answers.popleft()
            if isinstance(result, DanubeError):
                self.batches.refused(batch, result)
            else:
                self.batches.published(batch, *result)
            self.pump()

    def lose_connection(self) -> None:
        for _ in range(self.random.randint(0, len(self.wire))):
            self.broker.publish(self.wire.popleft().data, None)
        self.wire.clear()
        self.answers.clear()
        self.batches.connection_lost()
        self.pump()

    def forget(self) -> None:
        """Let the broker forget a producer that has nothing in flight, as its bounded table may."""
        if not self.batches.in_flight and not self.wire:
            self.broker.producers.clear()

    def time_out(self) -> None:
        self.batches.expire(self.now - self.random.randint(0, 4), lambda: Unavailable("timed out"))
        self.pump()

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        numbers = [int(payload.lstrip(b"mpoison")) for payload in self.broker.log]
        assert numbers == sorted(set(numbers)), "stored twice, or out of order"
        for payload, offset in self.placed.items():
            assert self.broker.log[offset] == payload
        assert self.batches.settled == len(self.placed) + len(self.failed)

    def run(self, steps: int) -> None:
        usual = [self.add, self.send, self.arrive, self.arrive, self.answer, self.answer] * 3
        trouble = [self.arrive_in_trouble, self.lose_connection, self.forget, self.time_out]
        for _ in range(steps):
            self.random.choice(usual + trouble)()
            self.check()

    def settle(self) -> None:
        """Let the broker answer everything; check that only invalid messages are refused."""
        before = set(self.failed)
        for _ in range(500):
            if not self.batches.has_work:
                break
            self.send()
            self.arrive()
            self.answer()
        assert self.batches.settled == self.batches.added == self.number
        self.check()
        for payload in set(self.failed) - before:
            assert payload.startswith(POISON) or self.excused(payload)

    def excused(self, payload: bytes) -> bool:
        """Return whether the message may have failed: it was in a batch with an invalid one, may be stored, or its
        producer was forgotten."""
        error = self.failed[payload]
        return isinstance(error, Invalid) or "may be stored" in error.message or "not remembered" in error.message


def test_whatever_happens_a_message_is_stored_at_most_once_in_order_and_answered() -> None:
    duplicates = renewals = 0
    for seed in range(300):
        simulation = Simulation(seed)
        try:
            simulation.run(steps=120)
            simulation.settle()
        except BaseException:
            print(f"seed {seed}")
            raise
        duplicates += simulation.duplicates
        renewals += simulation.identities - 1
    assert duplicates > 50 and renewals > 50, "the simulation went round the interesting cases"


class Bench:
    """Pending batches of one message each, and what became of each message."""

    def __init__(self) -> None:
        self.settled: list[tuple[bytes, int, bool, DanubeError | None]] = []
        self.batches = PendingBatches(1, 1_000, "", Codec.NONE, ignore, self._settled)
        self.batches.renew(7, 1)

    def _settled(self, rows: MessageRows, base: int, duplicate: bool, error: DanubeError | None) -> None:
        self.settled += [(payload, base + row, duplicate, error) for row, payload in enumerate(rows.payloads)]

    def sent(self, *payloads: bytes) -> list[InFlightBatch]:
        for payload in payloads:
            self.batches.add(payload, None, None, 1, 10, 0.0)
        batches = []
        while self.batches.take():
            batches.append(self.batches.mark_sent())
        return batches


@pytest.fixture
def bench() -> Bench:
    return Bench()


def sequence(batch: InFlightBatch) -> tuple[int, int]:
    header = Batch.open(bytes(batch.data)).header
    return header.producer_id, header.first_sequence


def test_a_lost_connection_sends_the_same_bytes_again_in_order(bench: Bench) -> None:
    batches = bench.sent(b"a", b"b", b"c")
    before = [bytes(batch.data) for batch in batches]
    bench.batches.published(batches[0], 0, False)
    bench.batches.connection_lost()
    again = [bench.batches.mark_sent(), bench.batches.mark_sent()]
    assert [bytes(batch.data) for batch in again] == before[1:]
    assert bench.batches.unsent is None


def test_a_refusal_for_the_moment_holds_everything_until_all_answers_are_in(bench: Bench) -> None:
    one, two = bench.sent(b"a", b"b")
    bench.batches.refused(one, Unavailable("disk"))
    bench.batches.add(b"c", None, None, 1, 10, 0.0)
    assert not bench.batches.take()
    assert bench.batches.sent_count != 0
    bench.batches.refused(two, Unavailable("gap"))
    bench.batches.resend_refused()
    assert [bench.batches.mark_sent(), bench.batches.mark_sent()] == [one, two]
    assert bench.batches.take()


def test_a_refusal_for_good_fails_its_batch_alone_and_the_rest_gets_a_new_identity(bench: Bench) -> None:
    one, two, three = bench.sent(b"a", b"b", b"c")
    bench.batches.published(one, 0, False)
    bench.batches.refused(two, Invalid("bad"))
    assert [(payload, type(error)) for payload, _, _, error in bench.settled] == [(b"a", type(None)), (b"b", Invalid)]
    assert not bench.batches.renewable  # c has no answer yet
    bench.batches.refused(three, Unavailable("gap"))
    assert bench.batches.renewable
    bench.batches.renew(8, 1)
    assert bench.batches.take()
    batch = bench.batches.mark_sent()
    assert (batch.rows.payloads, sequence(batch)) == ([b"c"], (8, 0))


def test_a_batch_that_may_be_stored_is_never_encoded_again(bench: Bench) -> None:
    bench.sent(b"a", b"b")
    bench.batches.connection_lost()
    bench.batches.expire(float("inf"), lambda: Unavailable("timed out"))
    assert bench.batches.renewable and bench.batches.broken
    other = Bench()
    one, two = other.sent(b"c", b"d")
    other.batches.connection_lost()  # both may be stored
    other.batches.mark_sent()
    other.batches.mark_sent()
    other.batches.refused(one, Invalid("bad"))
    other.batches.refused(two, Unavailable("gap, or anything else"))
    other.batches.renew(8, 1)
    assert not other.batches.take()
    assert [type(error) for _, _, _, error in other.settled] == [Invalid, Unavailable]


def test_a_producer_that_was_forgotten_starts_again_under_a_new_identity(bench: Bench) -> None:
    (one,) = bench.sent(b"a")
    bench.batches.published(one, 0, False)
    (two,) = bench.sent(b"b")
    bench.batches.refused(two, Refused("not remembered here"))
    assert bench.batches.renewable and bench.batches.broken
    bench.batches.renew(8, 1)
    assert bench.batches.take()
    assert sequence(bench.batches.mark_sent()) == (8, 0)


def test_being_refused_at_the_first_sequence_is_final(bench: Bench) -> None:
    (one,) = bench.sent(b"a")
    bench.batches.refused(one, Refused("closed for today"))
    assert [type(error) for _, _, _, error in bench.settled] == [Refused]


def test_a_full_broker_is_waited_for_and_named_when_time_is_up(bench: Bench) -> None:
    (one,) = bench.sent(b"a")
    bench.batches.refused(one, Full("disk"))
    assert bench.settled == []
    bench.batches.expire(1.0, lambda: Unavailable("timed out"))
    assert [type(error) for _, _, _, error in bench.settled] == [Full]


def test_a_full_broker_is_named_when_time_is_up_during_another_attempt(bench: Bench) -> None:
    (one,) = bench.sent(b"a")
    bench.batches.refused(one, Full("disk"))
    bench.batches.resend_refused()
    assert bench.batches.mark_sent() is one
    bench.batches.expire(1.0, lambda: Unavailable("timed out"))
    assert [type(error) for _, _, _, error in bench.settled] == [Full]


def test_an_answer_to_what_was_given_up_changes_nothing(bench: Bench) -> None:
    (one,) = bench.sent(b"a")
    bench.batches.expire(1.0, lambda: Unavailable("timed out"))
    bench.batches.published(one, 5, False)
    bench.batches.refused(one, Invalid("late"))
    assert len(bench.settled) == 1


def test_columns_appear_when_the_first_message_needs_them() -> None:
    done: list[MessageRows] = []
    batches = PendingBatches(10, 10_000, "me", Codec.NONE, ignore, lambda rows, *_: done.append(rows))
    batches.renew(1, 1)
    batches.add(b"a", None, None, 5, 1, 0.0)
    batches.add_many([b"b", b"c"], [1, 1], ["k", None], None, 6, 2, 0.0)
    batches.add(b"d", None, {"x": "y"}, 6, 1, 0.0)
    batches.close_filling()
    assert batches.take()
    batch = Batch.open(bytes(batches.mark_sent().data))
    assert batch.payloads == [b"a", b"b", b"c", b"d"]
    assert batch.keys == [None, "k", None, None]
    assert batch.attributes == [{}, {}, {}, {"x": "y"}]
    assert batch.publish_times.tolist() == [5, 6, 6, 6]
    assert batch.producer_name == "me"


@pytest.mark.parametrize("seed", range(20))
def test_append_adds_what_add_would_or_nothing(seed: int) -> None:
    random = Random(seed)
    messages_max, bytes_max = random.randint(1, 6), random.choice([60, 100, 10_000])
    quick = PendingBatches(messages_max, bytes_max, "me", Codec.NONE, ignore, lambda *_: None)
    plain = PendingBatches(messages_max, bytes_max, "me", Codec.NONE, ignore, lambda *_: None)
    appended = 0
    for number in range(60):
        payload, key, time = b"%d" % number, random.choice([None, None, None, "k"]), random.choice([5, 6])
        plain.add(payload, key, None, time, 20, 0.0)
        if key is None and quick.append(payload, time, 20):
            appended += 1
        else:
            quick.add(payload, key, None, time, 20, 0.0)
        assert quick.added == plain.added == number + 1
    for batches in (quick, plain):
        batches.renew(1, 1)
        batches.close_filling()
    assert appended or messages_max < 4 or bytes_max == 60
    while theirs := plain.take():
        ours = quick.take()
        assert ours is not None and ours.data == theirs.data
    assert quick.take() is None
