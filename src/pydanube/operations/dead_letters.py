"""Dead letters: messages that failed too often, which can be sent back to the topics they came from."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.dead_letters import LETTERS_AT_ONCE, RedriveStep
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.messages import StoredMessage
from pydanube.model.names import TopicName
from pydanube.model.positions import OFFSET_END
from pydanube.model.security import Action

from .operation import CHANGE_SECONDS, Operation, Rest, TheOwner, on_topic

_Offset = Annotated[int, Meta(ge=0, le=OFFSET_END - 1)]
_STEPS: Final = "One step; while `next_offset` is not -1, the next one begins there."

_rest = partial(
    Rest,
    "POST",
    tag="dead letters",
    takes={
        "partition": Annotated[int, Meta(ge=0, le=PARTITIONS_MAX - 1)],
        "offsets": Annotated[list[_Offset], Meta(max_length=LETTERS_AT_ONCE)],
        "start": _Offset,
        "letters_max": Annotated[int, Meta(ge=1, le=LETTERS_AT_ONCE)],
    },
    defaults={"partition": 0, "offsets": [], "start": 0, "letters_max": LETTERS_AT_ONCE},
    answer=RedriveStep(1),
)


class LettersListed(msgspec.Struct, omit_defaults=True):
    """Messages in order, as many as fit the answer. The next page begins at `next_offset`; -1: there is none."""

    messages: list[StoredMessage]
    next_offset: int = -1


class ListLetters(Operation[LettersListed], tag="dead_letter.list"):
    """Read dead letters of one partition of this broker from an offset on.

    Those that remain or, with `redriven`, all. Clients use ListUnsettled and FETCH.
    """

    for_brokers = True
    needs = on_topic(Action.READ)
    rest = "only brokers of a cluster ask each other; listDeadLetters forwards to the owner"
    topic: TopicName
    partition: int
    start: int = 0
    letters_max: int = 100
    redriven: bool = False


class RedriveLetters(Operation[RedriveStep], tag="dead_letter.redrive"):
    """Send dead letters of one partition back, or with `drop` acknowledge them only.

    This is one step. `model.dead_letters` has the rules. `on_behalf`: another broker asks for this principal, whose
    permissions count: its type, its name and its groups. From others than brokers it is refused.
    """

    where = TheOwner()
    seconds = CHANGE_SECONDS
    rest = (
        _rest(
            "/topics/{namespace}/{topic}/dead-letters/redrive",
            name="redriveDeadLetters",
            summary="Send letters back to the topics they came from",
            description=f"{_STEPS} A letter is done only after its topic has the message: none is lost, and an "
            "interruption may repeat some.",
            hides=("drop", "on_behalf"),
            example={},
        ),
        _rest(
            "/topics/{namespace}/{topic}/dead-letters/drop",
            name="dropDeadLetters",
            summary="Give letters up without sending them anywhere",
            description=f"{_STEPS} They stay stored.",
            hides=("to", "on_behalf"),
            sets={"drop": True},
            example={"offsets": [17]},
        ),
    )
    topic: TopicName
    partition: int
    offsets: list[int] = msgspec.field(default_factory=list)
    """These letters; empty: all that remain from `start` to `end`."""
    start: int = 0
    end: int = -1
    """-1: the end that the partition has now."""
    original_topic: str = ""
    """Only letters that came from this topic; empty: from any."""
    original_subscription: str = ""
    """Only letters that failed for this subscription; empty: for any."""
    letters_max: int = LETTERS_AT_ONCE
    """The most letters of this step."""
    to: str = ""
    """The topic that they are sent to; empty: the topic that each came from, if a broker wrote the letter."""
    drop: bool = False
    own_only: bool = False
    on_behalf: list[str] = msgspec.field(default_factory=list)

    @property
    def may_repeat(self) -> bool:
        """Letters chosen by their offsets are asked for once: the answer to a second request would say that they were
        redriven before."""
        return not self.offsets


DeadLetterOperation = ListLetters | RedriveLetters
