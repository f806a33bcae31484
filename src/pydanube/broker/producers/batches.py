"""Takes the batches of open producers: checks them, waits for the rates of quotas, passes them to their partition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.publish_checks import PayloadCheck, check_publishable
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.producers.producers import Producer, Producers
from pydanube.broker.quotas.throttle import PEER, Throttle
from pydanube.codec.batch import Batch, Codec
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.model.errors import DanubeError, Invalid, Refused, Unavailable, internal_error
from pydanube.model.replies import REQUEST_PRODUCER
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


@dataclass(eq=False)
class BatchPublisher:
    """Publishes to partitions of this broker; `publishing` to those of any."""

    context: BrokerContext
    producers: Producers
    throttle: Throttle
    authorizer: Authorizer
    """One that makes no audit events: the producers of batches are sessions."""
    refusal: Callable[[], DanubeError | None]
    """Returns why nothing can be stored now, or None."""

    def __post_init__(self) -> None:
        self._writer = self.context.writer
        self._limits = self.context.settings.limits
        self._metrics = self.context.metrics

    def publish(
        self,
        principal: Principal,
        producer: Producer,
        batch: memoryview,
        done: PublishDone,
        patience_s: float = math.inf,
    ) -> None:
        """Take one batch. `done` is called exactly once with the outcome, now or when the ack level is reached.

        A compressed batch is decompressed here: ask `decompression` first. `patience_s`: how long it may wait for the
        rates of quotas, before it is refused.
        """
        if self.throttle.is_active:
            self._publish_within_quotas(principal, producer, batch, done, patience_s)
        else:
            self._publish(principal, producer, done, batch)

    def _publish_within_quotas(
        self, principal: Principal, producer: Producer, batch: memoryview, done: PublishDone, patience_s: float
    ) -> None:
        refuse = partial(self._metrics.refuse, done)
        try:
            self.authorizer.check(principal, Action.PRODUCE, producer.topic)
            self.throttle.check_stored(producer.topic, producer.namespace)
        except DanubeError as error:
            refuse(error)
            return
        publish = partial(self._publish_in_turn, principal, producer, done)
        counted = PEER if producer.forwards else principal  # the broker that forwards has counted it for its principal
        self.throttle.publish(counted, producer, batch, publish, refuse, patience_s)

    def _publish_in_turn(self, principal: Principal, producer: Producer, done: PublishDone, batch: memoryview) -> None:
        try:
            self._publish(principal, producer, done, batch)
        except Exception as error:  # a bug, and the listener is not there any more to answer for it
            log.error("publish.crashed", topic=producer.topic, exc_info=error)
            done(internal_error("publish", error))

    def _publish(self, principal: Principal, producer: Producer, done: PublishDone, batch: memoryview) -> None:
        try:
            self.authorizer.check(principal, Action.PRODUCE, producer.topic)
            opened, check = self._check_batch(producer, batch)
        except DanubeError as error:
            self._metrics.refuse(done, error)
            return
        partition = producer.partition
        if partition.intake is None:
            partition.publish(opened, done)
        else:
            refuse = partial(self._metrics.refuse, done)
            partition.intake.submit(producer, opened, check, partial(partition.publish, opened, done), refuse)

    def _check_batch(self, producer: Producer, view: memoryview) -> tuple[Batch, PayloadCheck | None]:
        """Return the batch, and the check of its payloads that remains to be done, if any."""
        if producer.fenced is not None:
            raise producer.fenced
        batch = Batch.trust(view) if producer.is_own else Batch.open(view)
        header = batch.header
        if (
            header.producer_id != producer.producer_id or header.producer_epoch != producer.producer_epoch
        ) and not producer.forwards:
            raise Invalid(
                f"the batch is signed by producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the handle by {producer.producer_id} epoch {producer.producer_epoch}"
            )
        if producer.forwards and header.producer_id & STAGED_PRODUCER:
            _check_forwarded(producer, header.producer_id)
        is_of_client = header.producer_id not in (0, LETTER_PRODUCER)
        is_admitted = not producer.forwards and header.producer_id != REQUEST_PRODUCER
        if is_of_client and not is_admitted and self.producers.is_held(producer.partition.ownership.topic_id):
            raise Refused(f"topic {producer.topic} has a producer with exclusive access: wait until it is closed")
        partition = producer.partition
        schema = partition.intake.schema if partition.intake is not None else None
        check = check_publishable(batch, producer.topic, partition.policies, schema, partition.index)
        if partition.is_stored and self._writer.pending_bytes + len(view) > self._limits.pending_publish_bytes_max:
            raise Unavailable(
                "the broker has more unwritten publishes than limits.pending_publish_bytes_max: try again"
            )
        if (full := self.refusal()) is not None:
            raise full
        if (session := producer.session) is not None:
            session.messages += header.count
            session.bytes += len(view)
        # The decompressed copy, which may be a thousand times larger, is not kept while the batch is in flight.
        return batch if header.codec is Codec.NONE else Batch.trust(view), check


def _check_forwarded(producer: Producer, producer_id: int) -> None:
    """Raise Invalid unless a batch with a reserved id may be forwarded: dead letters and requests may, by a broker.
    What staged queries publish is written where it is read, and never forwarded."""
    if producer_id not in (LETTER_PRODUCER, REQUEST_PRODUCER):
        raise Invalid(f"producer id {producer_id} stands for a staged query: only the broker publishes with it")
    if not producer.is_proven:
        raise Invalid(
            "only a broker of this cluster forwards dead letters and requests, and this caller is not proven to be one"
        )
