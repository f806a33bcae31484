"""What REST alone has of dead letters: the messages as JSON, with what their attributes say about their history."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.gateway.http.data.messages import PayloadForm
from pydanube.model.dead_letters import LETTERS_AT_ONCE, LetterHistory
from pydanube.model.messages import StoredMessage
from pydanube.operations.dead_letters import ListLetters

from .operations import TOPIC_PATH, ApiCall, Offset, Operation, PartitionIndex, PayloadQuery
from .stored_messages import EXAMPLE, ShownMessage, show

_LETTERS: Final = f"{TOPIC_PATH}/dead-letters"


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
    wanted = ListLetters(
        topic=call.topic,
        partition=asked.partition,
        start=asked.after,
        letters_max=asked.limit,
        redriven=asked.redriven,
    )
    page = await call.broker.dead_letters.listed(call.principal, wanted)
    letters = [_letter(one, asked.payload) for one in page.messages]
    return DeadLetterPage(letters, None if page.next_offset < 0 else page.next_offset)


async def _get(call: ApiCall) -> DeadLetter:
    partition, offset = call.path["partition"], call.path["offset"]
    return _letter(
        await call.broker.dead_letters.get(call.principal, call.topic, partition, offset), call.query.payload
    )


_TAG: Final = "dead letters"
_LETTER: Final = DeadLetter(EXAMPLE, "/default/orders", "billing", 0, 17, 6, "no such customer", 0, True)

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
)
