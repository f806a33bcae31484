"""Operations on dead letters: messages that failed too often, which can be sent back to the topics they came from."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.gateway.http.data.messages import PayloadForm
from pydanube.model.dead_letters import LETTERS_AT_ONCE, LetterHistory, LetterSelection, RedriveStep
from pydanube.model.limits import NAME_CHARACTERS_MAX
from pydanube.model.messages import StoredMessage
from pydanube.model.names import TopicName, parse_subscription

from .operations import ApiCall, Operation
from .paging import Offset, PartitionIndex
from .stored_messages import EXAMPLE, ShownMessage, show
from .topics import TOPIC_PATH

_LETTERS: Final = f"{TOPIC_PATH}/dead-letters"


class PayloadQuery(msgspec.Struct):
    payload: PayloadForm = "text"
    """How payloads are written: text (or payload_base64 if it is not UTF-8), json (as a value if it is one), base64."""


class LetterQuery(PayloadQuery):
    partition: PartitionIndex = 0
    """The partition of the dead letter topic."""
    after: Offset = 0
    """Only offsets from here on: `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=LETTERS_AT_ONCE)] = 100
    """The most letters of one page."""
    redriven: bool = False
    """Also those that were redriven or dropped."""


class DeadLetter(msgspec.Struct):
    """A message of a dead letter topic, and what its attributes say about its history."""

    message: ShownMessage
    original_topic: str
    """Empty: it is no dead letter, but was published by a client."""
    original_subscription: str = ""
    original_partition: int | None = None
    original_offset: int | None = None
    attempts: int | None = None
    """How often it was delivered."""
    reason: str = ""
    """The reason of its last failure."""
    redriven: int = 0
    """How often it had been redriven before."""
    by_broker: bool = False
    """Whether a broker wrote it; if not, its origin may be wrong, and its redrive needs `to`."""


class DeadLetterPage(msgspec.Struct):
    """Letters of one partition, in order."""

    letters: list[DeadLetter]
    next: int | None = None
    """The value of `after` for the next page; null: this is the last one."""


class DropRequest(msgspec.Struct):
    """Which letters are to be given up."""

    partition: PartitionIndex = 0
    offsets: Annotated[list[Offset], msgspec.Meta(max_length=LETTERS_AT_ONCE)] = []
    """These letters; empty: all that remain from `start` to `end`."""
    start: Offset = 0
    end: Offset | None = None
    """null: the end that the partition has now."""
    original_topic: TopicName | None = None
    """Only letters that came from this topic; null: from any."""
    original_subscription: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only letters that failed for this subscription; empty: for any."""
    letters_max: Annotated[int, msgspec.Meta(ge=1, le=LETTERS_AT_ONCE)] = LETTERS_AT_ONCE
    """The most letters of this step."""

    def selection(self) -> LetterSelection:
        return LetterSelection(
            self.offsets,
            self.start,
            self.end,
            str(self.original_topic or ""),
            parse_subscription(self.original_subscription) if self.original_subscription else "",
            self.letters_max,
        )


class RedriveRequest(DropRequest):
    """Which letters are to be sent back."""

    to: TopicName | None = None
    """The topic that they are sent to; null: the topic that each came from, if a broker wrote the letter."""


class StayedLetter(msgspec.Struct):
    """A letter that could not be sent back."""

    offset: int
    reason: str


class RedriveResult(msgspec.Struct):
    """What one step did."""

    done: int
    """Letters sent back, or dropped."""
    stayed: list[StayedLetter]
    next: int | None = None
    """The value of `start` for the next step; null: this was the last one."""
    remaining: int = 0
    """How many messages of the partition are neither redriven nor dropped."""


def _letter(message: StoredMessage, form: PayloadForm) -> DeadLetter:
    history = LetterHistory(message.attributes)
    return DeadLetter(
        show(message, form),
        history.original_topic,
        history.original_subscription,
        history.original_partition,
        history.original_offset,
        history.attempts,
        history.reason,
        history.redriven,
        message.is_by_broker,
    )


async def _list(call: ApiCall) -> DeadLetterPage:
    asked: LetterQuery = call.query
    page = await call.broker.dead_letters.listed(
        call.principal, call.topic, asked.partition, asked.after, asked.limit, asked.redriven
    )
    return DeadLetterPage([_letter(one, asked.payload) for one in page.messages], page.next_offset)


async def _get(call: ApiCall) -> DeadLetter:
    partition, offset = call.path["partition"], call.path["offset"]
    return _letter(
        await call.broker.dead_letters.get(call.principal, call.topic, partition, offset), call.query.payload
    )


def _result(step: RedriveStep) -> RedriveResult:
    stayed = [StayedLetter(offset, reason) for offset, reason in step.stayed]
    return RedriveResult(step.done, stayed, step.next_offset, step.remaining)


async def _redrive(call: ApiCall) -> RedriveResult:
    asked: RedriveRequest = call.body
    letters = call.broker.dead_letters
    return _result(await letters.redrive(call.principal, call.topic, asked.partition, asked.selection(), asked.to))


async def _drop(call: ApiCall) -> RedriveResult:
    asked: DropRequest = call.body
    letters = call.broker.dead_letters
    return _result(await letters.drop(call.principal, call.topic, asked.partition, asked.selection()))


_TAG: Final = "dead letters"
_LETTER: Final = DeadLetter(EXAMPLE, "/default/orders", "billing", 0, 17, 6, "no such customer", 0, True)
_STEPS: Final = "One step; while `next` is not null, the next one begins there."

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_LETTERS,
        name="listDeadLetters",
        summary="List the letters of a dead letter topic that remain",
        tag=_TAG,
        handler=_list,
        query=LetterQuery,
        reply=DeadLetterPage,
        reply_example=DeadLetterPage([_LETTER]),
        errors=(409,),
    ),
    Operation(
        method="GET",
        path=f"{_LETTERS}/{{partition}}/{{offset}}",
        name="getDeadLetter",
        summary="Get one letter, redriven or not",
        tag=_TAG,
        handler=_get,
        query=PayloadQuery,
        reply=DeadLetter,
        reply_example=_LETTER,
        errors=(409,),
    ),
    Operation(
        method="POST",
        path=f"{_LETTERS}/redrive",
        name="redriveDeadLetters",
        summary="Send letters back to the topics they came from",
        description=f"{_STEPS} A letter is done only after its topic has the message: none is lost, and an "
        "interruption may repeat some.",
        tag=_TAG,
        handler=_redrive,
        body=RedriveRequest,
        body_optional=True,
        body_example=RedriveRequest(),
        reply=RedriveResult,
        reply_example=RedriveResult(1, []),
        native=(wire.RedriveLetters,),
    ),
    Operation(
        method="POST",
        path=f"{_LETTERS}/drop",
        name="dropDeadLetters",
        summary="Give letters up without sending them anywhere",
        description=f"{_STEPS} They stay stored.",
        tag=_TAG,
        handler=_drop,
        body=DropRequest,
        body_optional=True,
        body_example=DropRequest(offsets=[17]),
        reply=RedriveResult,
        reply_example=RedriveResult(1, []),
        native=(wire.RedriveLetters,),
    ),
)
