"""Checks that every published batch must pass, from any listener. Its bytes were verified when it was opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pydanube.codec.batch import Batch
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.policies import Policies


class PayloadCheck(Protocol):
    """The check of the payloads of one batch, which is done in steps of about a millisecond."""

    @property
    def is_ready(self) -> bool:
        """Whether `step` can be called; if not, `load` must be awaited first."""

    def step(self) -> bool:
        """Check some more rows, and return whether the batch is checked. Raises Invalid with the row and the reason."""

    async def load(self) -> None:
        """Load the schema that the next rows need. Cancelled: it can be called again."""

    def drop_plain(self) -> None:
        """Let go of the decompressed copy of the batch; it is decompressed again when its turn comes."""


class SchemaCheck(Protocol):
    """The binding of a topic to a subject, as batches are checked against it."""

    warned: dict[int, int]
    """By partition: how many batches did not fit and were stored all the same, because the policy is `warn`."""

    def begin(self, batch: Batch, partition: int) -> PayloadCheck | None:
        """Check the schema that the batch names, and return the check of its payloads if they have to be checked."""


class Fenceable(Protocol):
    """A producer, which another one may fence while its batches wait."""

    fenced: DanubeError | None


def check_publishable(
    batch: Batch, topic: str, policies: Policies, schema: SchemaCheck | None = None, partition: int = 0
) -> PayloadCheck | None:
    """Check a batch that is published or staged: its form, its sizes, and the schema that the topic is bound to.

    Raises Invalid if it has a row selection, a message larger than the topic's policies allow, or a schema that the
    topic does not take. Returns the check of its payloads, which remains to be done, or None.
    """
    if not batch.header.publishable:
        raise Invalid("a batch with a row selection cannot be published: send whole rows")
    limit = policies.message_bytes_max
    assert limit is not None
    if batch.header.plain_length > limit:
        largest = batch.largest_payload_bytes
        if largest > limit:
            raise Invalid(
                f"a message of {largest} bytes is larger than topic {topic} takes, which is {limit}: send smaller "
                f"ones, or raise its policy message_bytes_max (and limits.message_bytes_max, which no policy passes)"
            )
    return None if schema is None else schema.begin(batch, partition)


class PublishIntake(Protocol):
    """The batches of one partition whose payloads are being checked, before the partition gets them."""

    schema: SchemaCheck | None
    """None: nothing is checked any more."""

    def __len__(self) -> int: ...

    @property
    def warned(self) -> int:
        """How many batches of this partition did not fit and were stored all the same; see `SchemaCheck`."""

    def submit(
        self,
        producer: Fenceable,
        batch: Batch,
        check: PayloadCheck | None,
        publish: Callable[[], None],
        fail: Callable[[DanubeError], None],
    ) -> None:
        """Check the batch, behind those that wait; then call `publish`, or `fail` with what is wrong with it."""

    def refuse(self, error: DanubeError, concerns: Callable[[int, int], bool] | None = None) -> None:
        """Fail waiting batches with `error`: all, or those for whose producer id and epoch `concerns` is true."""
