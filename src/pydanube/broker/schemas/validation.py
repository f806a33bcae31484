"""Checks published payloads against the schemas that their topic is bound to, on the event loop, a little at a time.

```
 publish --> header: subject, version --> queue of the partition --> rows, a slice at a time --> partition
                    \\__ Invalid, or counted                                \\__ Invalid, or counted
```

The libraries that check payloads hold the interpreter's lock, so that a thread would not help. One turn of the loop
checks for about SLICE_S, in turn for each partition that has batches waiting; then everything else that the loop has
to do comes first. Batches that wait are part of the publish window of their connection, which is how producers are
slowed down.

Invariants
    the batches of a partition reach it in the order in which they were published, whether or not they are checked
    every batch is answered exactly once
    a batch of a producer that was fenced while it waited does not reach the partition
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pydanube.broker.partitions.publish_checks import Fenceable, PayloadCheck, SchemaCheck
from pydanube.codec.batch import Batch, Codec
from pydanube.codec.batch.column_views import Int32Array
from pydanube.codec.batch.header import BatchHeader
from pydanube.formats import InvalidRow, ParsedSchema
from pydanube.model.errors import DanubeError, Invalid, Unavailable, internal_error
from pydanube.model.schemas import Binding, Framing, ValidationPolicy
from pydanube.runtime.cache import Cache
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .definitions import Definitions
from .subjects import Subject

log = get_logger(__name__)

SLICE_S: Final = 0.001
"""How long payloads are checked before everything else on the loop gets a turn."""

STEPS_PER_TURN: Final = 200
"""The most steps of one turn, for a clock that does not move."""

ROW_UNITS: Final = 64
"""The cost of a row in bytes, assumed until the cost of a schema's rows is measured."""

PACE_FIRST: Final = 20_000_000.0
"""The first guess of the units (bytes, and ROW_UNITS for each row) that are checked in a second."""

PACE_MIN: Final = 200_000.0
PACE_SHARE: Final = 0.3
"""How much the last measurement counts."""

LOG_INTERVAL_S: Final = 10.0
"""The shortest time between two log events about payloads of one topic that are stored although they do not fit."""

VALIDATORS_KEPT: Final = 32
"""How many versions a topic keeps ready. Producers use one or two at a time."""

PREFIX_BYTES: Final = 5
"""Confluent's framing: a zero byte, and the global id in four bytes, the highest first."""


class Pace:
    """How fast payloads are checked, in units per second."""

    __slots__ = ("units_per_s",)

    def __init__(self) -> None:
        self.units_per_s = PACE_FIRST

    def measure(self, units: int, took_s: float) -> None:
        if took_s > 0:
            self.units_per_s = max(PACE_MIN, (1 - PACE_SHARE) * self.units_per_s + PACE_SHARE * units / took_s)


class Validator:
    """A parsed schema, and how fast its payloads are checked."""

    __slots__ = ("pace", "schema")

    def __init__(self, schema: ParsedSchema) -> None:
        self.schema = schema
        self.pace = Pace()


class BoundTopic:
    """The binding of one topic to a subject, as its batches are checked. A changed binding is another object."""

    def __init__(
        self,
        topic: str,
        binding: Binding,
        subject: Subject | None,
        definitions: Definitions,
        clock: Clock,
        violations: Counter[str],
        warned: dict[int, int] | None = None,
    ) -> None:
        """`subject` is None if it does not exist, which happens only after metadata was lost. `violations` counts,
        by policy, all batches that do not fit; `warned`, by partition, those that were stored all the same: it is taken
        over from a former binding."""
        self.topic = topic
        self.binding = binding
        self.clock = clock
        self.warned: dict[int, int] = {} if warned is None else warned
        self._subject = subject
        self._definitions = definitions
        self._validators: Cache[int, Validator] = Cache(VALIDATORS_KEPT)
        self.framed_pace = Pace()
        """Of payloads that name their schemas."""
        self._violations = violations
        self._log_after = float("-inf")
        self._unlogged = 0

    def is_for(self, binding: Binding, subject: Subject | None) -> bool:
        """Return whether batches are checked against this binding and this subject. A subject that was deleted and made
        again is another one."""
        return self.binding == binding and self._subject is subject

    def begin(self, batch: Batch, partition: int) -> PayloadCheck | None:
        """Check the schema that the batch names, and return the check of its payloads if they have to be checked.

        Raises Invalid if the policy is `enforce` and the topic does not take the schema.
        """
        try:
            version = self._version(batch.header)
        except Invalid as error:
            self.violated(partition, error)
            return None
        if not self.binding.validate_payloads:
            return None
        return BatchCheck(self, batch, partition, version)

    def violated(self, partition: int, error: DanubeError) -> None:
        """Raise the error if the policy is `enforce`; count and log it if it is `warn`."""
        self._violations[str(self.binding.policy)] += 1
        if self.binding.policy is ValidationPolicy.ENFORCE:
            raise error
        self.warned[partition] = self.warned.get(partition, 0) + 1
        self._unlogged += 1
        now = self.clock.monotonic()
        if now >= self._log_after:
            self._log_after = now + LOG_INTERVAL_S
            log.warning(
                "schema.violated", topic=self.topic, partition=partition, batches=self._unlogged, reason=error.message
            )
            self._unlogged = 0

    def _version(self, header: BatchHeader) -> int:
        """Return the version that the batch was written with; 0 if each of its payloads names one. Raises Invalid."""
        subject, binding = self._subject, self.binding
        if subject is None:
            raise Invalid(f"topic {self.topic} is bound to subject {binding.subject!r}, which does not exist any more")
        if header.schema_id != subject.schema_id:
            if header.schema_id:
                raise Invalid(
                    f"topic {self.topic} carries subject {subject.name!r}, whose schema id is {subject.schema_id}, and "
                    f"the batch has schema id {header.schema_id}"
                )
            if binding.framing is Framing.CONFLUENT:
                return 0
            raise Invalid(
                f"topic {self.topic} carries subject {subject.name!r}, and the batch names no schema: open the "
                f"producer with a schema of that subject"
            )
        version = header.schema_version or binding.pinned_version or subject.latest
        self.check_version(version)
        return version

    def check_version(self, version: int) -> None:
        """Raise Invalid if the version does not exist, is deleted, or is not allowed by the binding."""
        subject = self._subject
        assert subject is not None
        if version not in subject.versions:
            raise Invalid(f"subject {subject.name!r} has no version {version}: register it first")
        if version in subject.deleted:
            raise Invalid(f"version {version} of subject {subject.name!r} is deleted: use another one")
        if not self.binding.allows(version):
            raise Invalid(f"topic {self.topic} takes {self.binding.rule}, not version {version}")

    def version_of(self, global_id: int) -> int:
        """Return the version of the subject that has this global id. Raises Invalid if there is none, or if the binding
        does not allow it."""
        assert self._subject is not None
        version = self._subject.by_global_id(global_id)
        if not version:
            raise Invalid(f"global schema id {global_id} is no version of subject {self._subject.name!r}")
        self.check_version(version)
        return version

    def looks_framed(self, payload: bytes) -> bool:
        """Return whether the payload begins with the prefix of Confluent, with the id of a version of the subject."""
        return (
            self._subject is not None
            and payload[:1] == b"\0"
            and len(payload) >= PREFIX_BYTES
            and self._subject.by_global_id(int.from_bytes(payload[1:PREFIX_BYTES])) > 0
        )

    def validator(self, version: int) -> Validator | None:
        """Return the validator of a version if it is loaded."""
        return self._validators.get(version)

    async def load(self, version: int) -> None:
        """Load the validator of a version. Raises what the registry raises, if it cannot be read or parsed."""
        assert self._subject is not None
        schema = await self._definitions.parsed(self._subject, version)
        if self._validators.get(version) is None:
            self._validators.put(version, Validator(schema))


class BatchCheck:
    """The check of the payloads of one batch; see `PayloadCheck`."""

    __slots__ = ("_batch", "_bound", "_ends", "_missing", "_partition", "_row", "_version")

    def __init__(self, bound: BoundTopic, batch: Batch, partition: int, version: int) -> None:
        """`version` 0: the payloads are framed, and each names its own."""
        self._bound = bound
        self._batch = batch
        self._partition = partition
        self._version = version
        self._row = 0
        is_framed = bound.binding.framing is Framing.CONFLUENT
        self._missing = 0 if is_framed or bound.validator(version) is not None else version
        """The version whose validator has to be loaded before the next step; 0: none."""
        self._ends: Int32Array | None = None
        """Where the payloads begin, from the first step on."""

    @property
    def is_ready(self) -> bool:
        return not self._missing

    async def load(self) -> None:
        """See `PayloadCheck`. A schema that cannot be loaded counts as a violation."""
        version, self._missing = self._missing, 0
        if version:
            try:
                await self._bound.load(version)
            except Unavailable:
                self._missing = version
                raise
            except DanubeError as error:
                self._violated(error)

    def drop_plain(self) -> None:
        if self._batch.header.codec is not Codec.NONE:
            self._batch = Batch.trust(self._batch.view)

    def step(self) -> bool:
        """See `PayloadCheck`."""
        batch, start = self._batch, self._row
        if start >= batch.count:
            return True
        validator, pace = None, self._bound.framed_pace
        if self._bound.binding.framing is not Framing.CONFLUENT:
            validator = self._bound.validator(self._version)
            if validator is None:  # other versions pushed it out
                self._missing = self._version
                return False
            pace = validator.pace
        if self._ends is None:
            self._ends = batch.payload_offsets
        end = self._slice_end(self._ends, start, pace.units_per_s)
        clock = self._bound.clock
        since = clock.monotonic()
        payloads = batch.payloads_between(start, end)
        if validator is None:
            payloads = payloads[: _rows_of_few_schemas(payloads)]
            end = start + len(payloads)
        found = self._check_framed(payloads) if validator is None else self._check_rows(validator.schema, payloads)
        if self._missing:
            return False
        units = int(self._ends[end] - self._ends[start]) + ROW_UNITS * (end - start)
        pace.measure(units, clock.monotonic() - since)
        if found is not None:
            self._violated(self._invalid(start + found.row, found.reason, payloads[found.row]))
            return True
        self._row = end
        return end >= batch.count

    def _slice_end(self, ends: Int32Array, start: int, pace: float) -> int:
        """Return the end of the rows that are checked in about SLICE_S; at least one row."""
        units = pace * SLICE_S
        rows = max(1, int(units) // ROW_UNITS)
        by_size = int(np.searchsorted(ends, int(ends[start]) + units, side="right")) - 1
        return min(self._batch.count, max(start + 1, min(start + rows, by_size)))

    def _check_rows(self, schema: ParsedSchema, payloads: Sequence[bytes]) -> InvalidRow | None:
        """Return the first row that is not valid. Empty payloads are tombstones where the topic takes them; elsewhere
        they are checked: a protobuf message with default values only is empty, and so is an empty text."""
        if b"" not in payloads:
            return schema.check(payloads)
        if not self._bound.binding.tombstones:
            found = schema.check(payloads)
            if found is None or payloads[found.row]:
                return found
            return InvalidRow(found.row, "the payload is empty, and the topic takes no tombstones")
        rows = [row for row, payload in enumerate(payloads) if payload]
        found = schema.check([payloads[row] for row in rows])
        return None if found is None else InvalidRow(rows[found.row], found.reason)

    def _check_framed(self, payloads: Sequence[bytes]) -> InvalidRow | None:
        """Check payloads that name their schemas; those of one schema together. Sets `_missing` if one is not loaded,
        and has checked nothing then."""
        groups: dict[bytes, list[int]] = {}
        for row, payload in enumerate(payloads):
            groups.setdefault(payload[:PREFIX_BYTES], []).append(row)
        found: list[InvalidRow] = []
        checks: list[tuple[Validator, list[int]]] = []
        for prefix, rows in groups.items():
            if not prefix:
                if not self._bound.binding.tombstones:
                    found.append(InvalidRow(rows[0], "the payload is empty, and the topic takes no tombstones"))
            elif len(prefix) < PREFIX_BYTES or prefix[0]:
                reason = "the payload does not begin with the prefix of Confluent, a zero byte and a schema id"
                found.append(InvalidRow(rows[0], reason))
            else:
                try:
                    version = self._bound.version_of(int.from_bytes(prefix[1:]))
                except Invalid as error:
                    found.append(InvalidRow(rows[0], error.message))
                    continue
                validator = self._bound.validator(version)
                if validator is None:
                    self._missing = version
                    return None
                checks.append((validator, rows))
        for validator, rows in checks:
            schema = validator.schema
            check = getattr(schema, "check_framed", schema.check)  # of protobuf: the message type comes first
            invalid = check([payloads[row][PREFIX_BYTES:] for row in rows])
            if invalid is not None:
                found.append(InvalidRow(rows[invalid.row], invalid.reason))
        return min(found, default=None)

    def _invalid(self, row: int, reason: str, payload: bytes) -> Invalid:
        binding = self._bound.binding
        which = f"version {self._version} of subject" if self._version else "subject"
        hint = ""
        if binding.framing is Framing.NONE and self._bound.looks_framed(payload):
            hint = "; it begins with the prefix of Confluent: bind the topic with that framing"
        return Invalid(f"row {row} of the batch does not fit {which} {binding.subject!r}: {reason}{hint}")

    def _violated(self, error: DanubeError) -> None:
        self._row = self._batch.count  # with `warn`, the rest need not be checked
        self._bound.violated(self._partition, error)


def _rows_of_few_schemas(payloads: Sequence[bytes]) -> int:
    """Return how many of the payloads, from the first on, need no more validators than a topic keeps."""
    prefixes: set[bytes] = set()
    for row, payload in enumerate(payloads):
        prefixes.add(payload[:PREFIX_BYTES])
        if len(prefixes) > VALIDATORS_KEPT:
            return row
    return len(payloads)


class _Waiting(NamedTuple):
    producer: Fenceable
    batch: Batch
    check: PayloadCheck | None
    publish: Callable[[], None]
    fail: Callable[[DanubeError], None]


class Validations:
    """Gives the partitions whose batches wait to be checked their turns on the event loop."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self.tasks = tasks
        self._ready: deque[PartitionIntake] = deque()
        self._next: asyncio.Handle | None = None

    def add(self, intake: PartitionIntake) -> None:
        """Give turns to a partition until it has nothing to check any more."""
        self._ready.append(intake)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        end = self._clock.monotonic() + SLICE_S
        for _ in range(STEPS_PER_TURN):
            intake = self._ready.popleft()
            if intake.step():
                self._ready.append(intake)
            if not self._ready or self._clock.monotonic() >= end:
                break
        if self._ready and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    async def run(self, check: PayloadCheck) -> None:
        """Do one check to its end, outside the queues of the partitions. Cancelled: it is left unfinished."""
        while True:
            if not check.is_ready:
                await check.load()
            if check.step():
                return
            await asyncio.sleep(0)


class PartitionIntake:
    """The batches of one partition whose payloads are being checked; see `PublishIntake`."""

    def __init__(self, index: int, schema: SchemaCheck | None, validations: Validations) -> None:
        self.schema = schema
        self._index = index
        self._validations = validations
        self._waiting: deque[_Waiting] = deque()
        self._is_active = False
        """Whether the partition gets turns, or waits for a schema to be loaded."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def warned(self) -> int:
        return self.schema.warned.get(self._index, 0) if self.schema is not None else 0

    def submit(
        self,
        producer: Fenceable,
        batch: Batch,
        check: PayloadCheck | None,
        publish: Callable[[], None],
        fail: Callable[[DanubeError], None],
    ) -> None:
        """See `PublishIntake`."""
        if check is None and not self._waiting:
            publish()
            return
        if check is not None and self._waiting:
            check.drop_plain()
        self._waiting.append(_Waiting(producer, batch, check, publish, fail))
        self._activate()

    def refuse(self, error: DanubeError, concerns: Callable[[int, int], bool] | None = None) -> None:
        """See `PublishIntake`."""
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            header = one.batch.header
            if concerns is None or concerns(header.producer_id, header.producer_epoch):
                one.fail(error)
            else:
                self._waiting.append(one)

    def step(self) -> bool:
        """Check some rows of the first batch, and return whether the partition needs another turn now."""
        if self._waiting:
            first = self._waiting[0]
            if first.check is not None and not first.check.is_ready:
                self._validations.tasks.spawn(self._load(first), "schema loading")
                return False  # it stays active, so that nothing else gives it turns
            try:
                if first.check is None or first.check.step():
                    self._publish(first)
            except Exception as error:  # a bug, here or in a library, must not stop the batches behind
                self._fail(first, error)
        self._is_active = bool(self._waiting)
        return self._is_active

    async def _load(self, first: _Waiting) -> None:
        """Load the schema of the first batch, and go on. Cancelled: the broker is closing."""
        assert first.check is not None
        try:
            await first.check.load()
        except Exception as error:
            if self._waiting and self._waiting[0] is first:  # otherwise it was refused meanwhile
                self._fail(first, error)
        self._is_active = False
        self._activate()

    def _activate(self) -> None:
        if self._waiting and not self._is_active:
            self._is_active = True
            self._validations.add(self)

    def _publish(self, first: _Waiting) -> None:
        self._waiting.popleft()
        if first.producer.fenced is not None:
            first.fail(first.producer.fenced)
        else:
            first.publish()

    def _fail(self, first: _Waiting, error: Exception) -> None:
        if self._waiting and self._waiting[0] is first:
            self._waiting.popleft()
        if not isinstance(error, DanubeError):
            log.error("schema.check_crashed", partition=self._index, exc_info=error)
            error = internal_error("a check of payloads", error)
        try:
            first.fail(error)
        except Exception as bug:
            log.error("schema.answer_crashed", partition=self._index, exc_info=bug)
