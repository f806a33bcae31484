"""Requests about several partitions, carried out by any broker: the one that is asked asks each owner for its share.

```
 asked for partitions 0 1 2 3 4 of a topic
   own:      0 3      done here                                    ┐
   broker b: 1 4      the same request with own_only, one call     ├─ all at once ─► merged, by partition
   broker c: 2        the same request with own_only, one call     ┘
```

Invariants
    each other owner is asked at most once, whatever the number of its partitions
    a broker that is asked with `own_only` asks no other, so no request goes round in circles
    a broker that is no part of a cluster asks no other
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from pydanube.broker.registry.records import TopicRecord
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.operations import DivisibleT, EachOwner, Operation, Request, TheOwner, answer_of
from pydanube.runtime.tasks import run_together

from .parts import ClusterParts
from .peers import AnswerT

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)
OperationT = TypeVar("OperationT", bound=Operation[Any])

PARTITIONS_NAMED_MAX: Final = 20
"""The most partitions that an error lists by their numbers."""


class Shares(NamedTuple):
    """Partitions by the broker that answers for them. Those without a living owner are among the own ones: this broker
    says what is wrong with them."""

    own: list[int]
    others: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """What was found, by partition, and why nothing was found for others."""

    found: dict[int, T]
    missing: dict[int, DanubeError]

    def complete(self, what: str) -> dict[int, T]:
        """Return what was found in every partition. Raises the error of those that are missing."""
        if self.missing:
            raise self._error(f"{what}: ")
        return self.found

    def done(self, what: str) -> dict[int, T]:
        """Return the outcome of a change that was made in every partition. Raises the error of those where it was not,
        which says where it was made."""
        if not self.missing:
            return self.found
        if not self.found:
            raise self._error(f"{what}: ")
        raise self._error(f"{what} was done on {_partitions(self.found)} and not on all: ")

    def _error(self, about: str) -> DanubeError:
        by_reason: dict[str, list[int]] = {}
        for index, error in sorted(self.missing.items()):
            by_reason.setdefault(error.message, []).append(index)
        reasons = "; ".join(f"{_partitions(indexes)}: {reason}" for reason, indexes in by_reason.items())
        lasting = [error for error in self.missing.values() if not isinstance(error, Unavailable | NotOwner)]
        kind = type(lasting[0]) if lasting else Unavailable
        return kind(about + reasons)


class Gathering:
    """Asks the owners of partitions, of which this broker may be one."""

    def __init__(self, cluster: ClusterParts) -> None:
        self._cluster = cluster
        self._membership = cluster.membership
        self._owners = cluster.owners
        self._peers = cluster.peers

    @property
    def is_alone(self) -> bool:
        return self._membership.is_alone

    def shares(self, topic_id: int, indexes: Iterable[int], own_only: bool = False) -> Shares:
        """Return which broker answers for each partition; with `own_only`, only those that this broker owns."""
        if self._membership.is_alone:
            return Shares(list(indexes), {})
        mine, own = self._membership.session.name, list[int]()
        others: dict[str, list[int]] = {}
        for index in indexes:
            owner = self._owners.owner(topic_id, index)
            if owner is not None and owner.name == mine:
                own.append(index)
            elif own_only:
                continue
            elif owner is None:
                own.append(index)
            else:
                others.setdefault(owner.name, []).append(index)
        return Shares(own, others)

    def elsewhere(self, topic_id: int, index: int, own_only: bool) -> str | None:
        """Return the name of the broker that has to carry out a request about one partition; None: this one."""
        owner = None if own_only else self._cluster.other_owner(topic_id, index)
        return None if owner is None else owner.name

    async def forward(self, broker: str, request: Request, answer: type[AnswerT]) -> AnswerT:
        """Have another broker carry out a request about one of its partitions."""
        return await self._peers.request(broker, request, answer)

    async def at_owner(
        self, topic: TopicRecord, operation: OperationT, own: Callable[[OperationT], Awaitable[StructT]]
    ) -> StructT:
        """Have the owner of a partition carry out an operation, which names it. `own` does that here."""
        where = operation.where
        assert isinstance(where, TheOwner)
        owner = self.elsewhere(topic.topic_id, getattr(operation, where.partition), operation.is_share)
        if owner is None:
            return await own(operation)
        answer: type[StructT] = answer_of(type(operation))
        return await self.forward(owner, msgspec.structs.replace(operation, own_only=True), answer)

    async def ask(self, requests: Mapping[str, Request], answer: type[AnswerT]) -> dict[str, AnswerT | DanubeError]:
        """Ask several brokers at once, and return the answer or the error of each, which names it."""
        found = await run_together([self._ask_one(broker, one, answer) for broker, one in requests.items()])
        return dict(zip(requests, found, strict=True))

    async def at_each_owner(
        self,
        topic: TopicRecord,
        operation: OperationT,
        own: Callable[[OperationT, Sequence[int]], Awaitable[DivisibleT]],
    ) -> DivisibleT:
        """Have each owner of partitions carry out its share of an operation, and return their answers as one. `own`
        does that here; it gets the share and its partitions."""
        where = operation.where
        assert isinstance(where, EachOwner)
        indexes = where.partitions(operation, topic.config().partition_count)
        shares = self.shares(topic.topic_id, indexes, operation.is_share)
        kind: type[DivisibleT] = answer_of(type(operation))

        async def share_done() -> dict[int, Any]:
            return (await own(where.share(operation, shares.own), shares.own)).by_partition(shares.own)

        requests = {broker: where.share(operation, others) for broker, others in shares.others.items()}
        done = _kept(share_done()) if requests else share_done()  # if it fails here, the others are waited for
        found = await self.gather(shares, done, requests, kind, lambda answer: answer.by_partition(indexes))
        return kind.joined(found.done(where.doing.format(operation)))

    async def read(
        self,
        topic: TopicRecord,
        operation: Operation[Any],
        own: Callable[[Sequence[int]], Coroutine[Any, Any, Mapping[int, T]]],
    ) -> Gathered[T]:
        """Return what `own` finds in some partitions here, and what the other owners say of theirs. Raises what `own`
        raises."""
        where = operation.where
        assert isinstance(where, EachOwner) and where.found is not None
        indexes = where.partitions(operation, topic.config().partition_count)
        shares = self.shares(topic.topic_id, indexes, operation.is_share)
        requests = {broker: where.share(operation, others) for broker, others in shares.others.items()}
        return await self.gather(shares, own(shares.own), requests, answer_of(type(operation)), where.found)

    async def gather(
        self,
        shares: Shares,
        own: Coroutine[Any, Any, Mapping[int, T] | DanubeError],
        requests: Mapping[str, Request],
        answer: type[AnswerT],
        convert: Callable[[AnswerT], Mapping[int, T]],
    ) -> Gathered[T]:
        """Return what `own` finds here, and what the others answer to `requests`. Raises what `own` raises."""
        asking = [self._ask_one(broker, one, answer) for broker, one in requests.items()]
        outcomes: list[Any] = await run_together([own, *asking]) if asking else [await own]
        found, missing = dict[int, T](), dict[int, DanubeError]()
        if isinstance(outcomes[0], DanubeError):
            missing |= dict.fromkeys(shares.own, outcomes[0])
        else:
            found |= outcomes[0]
        for broker, answered in zip(requests, outcomes[1:], strict=True):
            indexes = shares.others[broker]
            if isinstance(answered, DanubeError):
                missing |= dict.fromkeys(indexes, answered)
                continue
            some = convert(answered)
            for index in indexes:
                if index in some:
                    found[index] = some[index]
                else:
                    missing[index] = Unavailable(f"broker {broker!r} does not own it any more: ask again")
        return Gathered(found, missing)

    async def _ask_one(self, broker: str, request: Request, answer: type[AnswerT]) -> AnswerT | DanubeError:
        try:
            return await self._peers.request(broker, request, answer)
        except NotOwner as error:
            return Unavailable(f"broker {broker!r} does not own it any more: {error.message}")
        except DanubeError as error:
            if repr(broker) in error.message:
                return error
            return type(error)(f"broker {broker!r}: {error.message}")


async def _kept(own: Coroutine[Any, Any, T]) -> T | DanubeError:
    try:
        return await own
    except DanubeError as error:
        return error


def _partitions(indexes: Iterable[int]) -> str:
    """Return partitions as text, not more of them than fit a line."""
    listed = sorted(indexes)
    some = ", ".join(str(one) for one in listed[:PARTITIONS_NAMED_MAX])
    more = len(listed) - PARTITIONS_NAMED_MAX
    return ("partition " if len(listed) == 1 else "partitions ") + some + (f" and {more} more" if more > 0 else "")
