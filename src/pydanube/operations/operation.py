"""What an operation is: its fields are the request, its class variables say what is true of it whoever asks.

```
 class GetRole(Operation[Role], tag="access.role"):      the answer; the name on the native wire
     \"\"\"Get a role.\"\"\"                                    the summary of the REST operation, then its description
     needs = on_cluster(Action.ADMINISTER)               asked by `broker.handlers.carry_out` before anything is done
     rest = Rest("GET", "/access/roles/{role}", ...)     or the reason why REST does not have it
     name: str                                           the fields, in the native protocol and in REST
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import msgspec

from pydanube.model.security import CLUSTER, Action, subscription_resource

CALL_SECONDS: Final = 5.0
"""How long a call of another broker may take, with connecting. A broker that answers nothing for so long would lose its
session soon."""

CHANGE_SECONDS: Final = 30.0
"""The same for requests that wait for a disk or for an object store before they are answered."""

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
AnswerT_co = TypeVar("AnswerT_co", bound=msgspec.Struct, covariant=True)
OperationT = TypeVar("OperationT", bound="Operation[Any]")


class Request(msgspec.Struct, tag_field="op", omit_defaults=True, kw_only=True):
    """Base of everything that is asked for with a REQUEST frame."""

    for_brokers: ClassVar[bool] = False
    """Whether only another broker of the cluster may ask for it."""
    seconds: ClassVar[float] = CALL_SECONDS
    """How long a broker waits for the answer of another one."""

    @property
    def is_share(self) -> bool:
        """Whether another broker asks for what this one owns, and nothing else."""
        return bool(getattr(self, "own_only", False))


class Divisible(msgspec.Struct):
    """Base of answers about partitions, of which each owner gives a part."""

    def by_partition(self, indexes: Sequence[int]) -> dict[int, Any]:
        """Return the answer for each of the partitions that were asked for, as far as it has them."""
        raise NotImplementedError

    @classmethod
    def joined(cls, found: Mapping[int, Any]) -> Self:
        """Return the answer that has all of `found`, by partition."""
        raise NotImplementedError


DivisibleT = TypeVar("DivisibleT", bound=Divisible)


class Done(Divisible):
    """The request was carried out; there is nothing to report."""

    def by_partition(self, indexes: Sequence[int]) -> dict[int, None]:
        return dict.fromkeys(indexes)

    @classmethod
    def joined(cls, _found: Mapping[int, None]) -> Self:
        return cls()


class EachOwner(NamedTuple):
    """Each owner of the partitions carries an operation out for its share. The broker that is asked asks the others
    with `own_only`, the last field of the operations of a release; a broker that is asked so does not ask others."""

    doing: str
    """What is said of those that failed: a format of the operation, such as `unloading {0.topic}`."""
    pairs: str = ""
    """The field with pairs of a partition and something of it, which is divided."""
    partition: str = ""
    """The field that names one partition, or with -1 all. Without `pairs` and this: all partitions of the topic."""
    found: Callable[[Any], Mapping[int, Any]] | None = None
    """Returns what an answer says, by partition, of operations that only read: what a silent owner has is unknown."""

    def partitions(self, operation: Operation[Any], count: int) -> Sequence[int]:
        """Return the partitions that an operation on a topic with so many is about."""
        if self.pairs:
            return [one[0] for one in getattr(operation, self.pairs)]
        one = getattr(operation, self.partition) if self.partition else -1
        return range(count) if one < 0 else [one]

    def share(self, operation: OperationT, indexes: Collection[int]) -> OperationT:
        """Return the operation for these partitions only."""
        pairs = {self.pairs: [one for one in getattr(operation, self.pairs) if one[0] in indexes]} if self.pairs else {}
        return msgspec.structs.replace(operation, own_only=True, **pairs)


class TheOwner(NamedTuple):
    """The owner of one partition carries an operation out. The broker that is asked forwards it with `own_only`."""

    partition: str = "partition"
    """The field that names the partition."""


class Needs(NamedTuple):
    """The permission that an operation needs."""

    action: Action
    resource: Callable[[Any], str]
    """Returns from the operation what the action is done to."""


def on_cluster(action: Action) -> Needs:
    return Needs(action, lambda _: CLUSTER)


def on_topic(action: Action) -> Needs:
    """Return the need of an operation whose field `topic` names the topic."""
    return Needs(action, lambda operation: str(operation.topic))


def on_topic_or_cluster(action: Action) -> Needs:
    """Return the need of an operation whose field `topic` names the topic, or is None for all of them."""
    return Needs(action, lambda operation: CLUSTER if operation.topic is None else str(operation.topic))


def on_subscription(action: Action) -> Needs:
    """Return the need of an operation whose fields `topic` and `subscription` name the subscription."""
    return Needs(action, lambda operation: subscription_resource(str(operation.topic), operation.subscription))


@dataclass(frozen=True, slots=True)
class Rest:
    """How REST offers an operation. Parameters of the path are fields; the others are the query, or with POST, PUT and
    PATCH the body. The field `expected` is the header If-Match."""

    method: Literal["GET", "PUT", "POST", "PATCH", "DELETE"]
    path: str
    """Below `/api/v1`."""
    tag: str
    name: str = ""
    """The operationId; empty: the name of the class."""
    summary: str = ""
    description: str = ""
    """Empty: the first paragraph of the docstring of the class, and the others."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the path or the query that have another name than their field, with the name of that."""
    hides: tuple[str, ...] = ()
    """Fields that REST does not have: they keep their defaults."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a REST request cannot set, with their values."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields with another default than that of the native protocol, which never changes."""
    takes: Mapping[str, Any] = field(default_factory=dict)
    """Fields with another type, which must be given unless `defaults` has them."""
    body: tuple[str, type] | None = None
    """The field that is the body as a whole, and how that looks: of a field that is a dict, what the body has. The
    other fields are the query then."""
    example: Mapping[str, Any] | None = None
    """A body."""
    answer: msgspec.Struct | None = None
    """An example of the answer; None for Done, which has no body."""
    shows: str = ""
    """The field or property of the answer that is shown; empty: the whole answer."""
    then: Callable[[Any], Operation[Any]] | None = None
    """Returns the operation that is carried out afterwards, and answered in REST; None: there is none."""
    made: str = ""
    """The field of what is shown that says whether something was made, with the status 201, or was there; empty: none
    says that."""
    status: int = 0
    """0: 200, or 204 without a body."""
    location: str = ""
    """The path, below `/api/v1`, of what was made: a format of the answer and the operation, such as
    `/access/roles/{0.name}`."""
    errors: tuple[int, ...] = ()
    """The statuses of errors beyond those that every operation may have."""
    has_etag: bool = False
    """Whether the entity tag of the answer is its `version`."""


class Operation(Request, Generic[AnswerT_co]):
    """Base of what any listener may ask a broker for. The parameter is the type of the answer."""

    needs: ClassVar[Needs | None] = None
    """None: the answer shows what the caller may see, or what it names decides; who carries it out asks then."""
    where: ClassVar[EachOwner | TheOwner | None] = None
    """Who carries it out. None: the broker that is asked."""
    is_repeatable: ClassVar[bool] = True
    """Whether a client may send it again after a lost connection."""
    rest: ClassVar[Rest | tuple[Rest, ...] | str]
    """How REST offers it, in one way or in several, or the reason why it does not."""

    @property
    def may_repeat(self) -> bool:
        """Whether this one may be sent again. A change that compares is sent once: repeated after a lost answer, it
        would find what it has changed itself."""
        return self.is_repeatable and not getattr(self, "expected", "")


def rests_of(kind: type[Operation[Any]]) -> tuple[Rest, ...]:
    """Return in which ways REST offers an operation."""
    match kind.rest:
        case Rest() as rest:
            return (rest,)
        case tuple() as rests:
            return rests
        case _:
            return ()


def answer_of(kind: type[Operation[AnswerT]]) -> type[AnswerT]:
    """Return the type of the answer of an operation."""
    answer: type[AnswerT] = get_args(vars(kind)["__orig_bases__"][0])[0]
    return answer
