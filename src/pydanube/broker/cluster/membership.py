"""This broker as a member of its cluster: its session, the other living brokers, and the coordinator.

A session is one key of the metadata that is bound to a lease. It lives as long as that key exists. A session that ended
never comes back: the broker takes another, with a new incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydanube.metadata.store import Compare
from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses
from pydanube.model.cluster import PROOF_BYTES, BrokerSession
from pydanube.runtime.randomness import secret_text


def _ignore(_about: object) -> None:
    """Do nothing; the default of each callback."""


@dataclass(frozen=True, slots=True)
class MembershipListener:
    """What is called when the membership changes, on the event loop. None of it may raise or block."""

    joined: Callable[[BrokerSession], None] = _ignore
    """Another broker has a session now."""
    left: Callable[[BrokerSession], None] = _ignore
    """The session of another broker has ended."""
    lost: Callable[[BrokerSession], None] = _ignore
    """The metadata says that this broker's own session has ended: every partition must be closed at once."""
    renewed: Callable[[BrokerSession], None] = _ignore
    """This broker has a session: its first one, or a new one after `lost`."""
    coordinating: Callable[[BrokerSession], None] = _ignore
    """This broker is the coordinator from now on."""
    drained: Callable[[str], None] = _ignore
    """The broker of this name is drained from now on, or no longer."""


class Membership(Protocol):
    """This broker's place among the brokers of its cluster."""

    @property
    def is_alone(self) -> bool:
        """Whether this broker is no part of a cluster."""
        ...

    @property
    def session(self) -> BrokerSession:
        """This broker's own session, the last one if it has none at this moment."""
        ...

    @property
    def identity(self) -> tuple[str, int]:
        """The name and the incarnation of the session, for those who ask for every message."""
        ...

    def holds(self) -> bool:
        """Return whether the session surely lives now, by a clock that also counts while the machine sleeps. Whatever
        only an owner may do (answer, deliver, count an ack) is done only if this is true at that moment."""
        ...

    def age_s(self) -> float:
        """Return for how many seconds what other brokers change may have passed this broker by; 0 while it follows the
        metadata under a session."""
        ...

    def is_own_log(self, log: str) -> bool:
        """Return whether the log of this id is the one that this broker writes. Records of earlier releases name none:
        they mean the log of the broker that founded the cluster."""
        ...

    def is_founder_log(self, log: str) -> bool:
        """Return whether the log of this id is the one that records of earlier releases mean, which name none."""
        ...

    def sessions(self) -> list[BrokerSession]:
        """Return the living brokers, this one included, by name."""
        ...

    def find(self, name: str) -> BrokerSession | None:
        """Return the session of the broker of this name; None if it has none."""
        ...

    def alive(self) -> list[Compare]:
        """Return comparisons that hold only while this broker's session lives."""
        ...

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        """Return comparisons that hold only while that session is over; None if it still lives. Reads the store."""
        ...

    def give_up(self, incarnation: int) -> None:
        """End the own session if it has this incarnation; another one begins as soon as possible."""
        ...

    def is_coordinator(self) -> bool:
        """Return whether this broker does the work that only one should do: placement, manifests, garbage collection.
        Two may believe it for a moment, so that work must be harmless when two do it."""
        ...

    def away_since(self, name: str) -> int:
        """Return since when a broker has no session, in microseconds since 1970; 0 if that is not known."""
        ...

    def is_drained(self, name: str) -> bool:
        """Return whether a broker gives its partitions away and is given none, until it is resumed."""
        ...

    @property
    def coordinator_name(self) -> str:
        """The name of the broker that is the coordinator; empty while there is none."""
        ...

    def away(self) -> list[str]:
        """Return the names of the brokers that belong to the cluster and have no session, in order."""
        ...

    @property
    def lease(self) -> int:
        """The lease of this broker's session; 0 if there is none."""
        ...

    def subscribe(self, listener: MembershipListener) -> None: ...


class SoleMembership:
    """The membership of a broker that is no part of a cluster: its data directory's lock keeps others away."""

    is_alone = True

    def __init__(
        self,
        name: str,
        log: str = "",
        addresses: Callable[[], BrokerAddresses] = lambda: NO_ADDRESSES,
        inside: Callable[[], BrokerAddresses] = lambda: NO_ADDRESSES,
    ) -> None:
        """`addresses` and `inside` return the addresses that clients are told, complete once all listeners are
        open."""
        self._name = name
        self._log = log
        self._addresses = addresses
        self._inside = inside
        self._proof = secret_text(PROOF_BYTES)
        """Nobody is told it: a broker alone has no others."""

    @property
    def session(self) -> BrokerSession:
        return BrokerSession(self._name, 0, self._addresses(), inside=self._inside(), log=self._log, proof=self._proof)

    @property
    def identity(self) -> tuple[str, int]:
        return self._name, 0

    def holds(self) -> bool:
        return True

    def age_s(self) -> float:
        return 0.0

    def is_own_log(self, log: str) -> bool:
        return True

    def is_founder_log(self, log: str) -> bool:
        return True

    def sessions(self) -> list[BrokerSession]:
        return [self.session]

    def find(self, name: str) -> BrokerSession | None:
        return self.session if name == self._name else None

    def alive(self) -> list[Compare]:
        return []

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        return []

    def give_up(self, incarnation: int) -> None:
        """Do nothing: this broker has no session."""

    def is_coordinator(self) -> bool:
        return True

    def away_since(self, name: str) -> int:
        return 0

    def is_drained(self, name: str) -> bool:
        return False

    @property
    def coordinator_name(self) -> str:
        return self._name

    def away(self) -> list[str]:
        return []

    @property
    def lease(self) -> int:
        return 0

    def subscribe(self, listener: MembershipListener) -> None:
        """Nothing ever changes."""
