"""What only other brokers of the cluster ask for, each call checked: the caller must be allowed to administer the
cluster, which brokers are."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from pydanube.broker.producers.producers import Producers
from pydanube.broker.registry.records import AccessRecord, ProducerRecord
from pydanube.broker.security.security import Security
from pydanube.broker.topics.unused import UnusedTopics
from pydanube.codec.native import requests as wire
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.model.errors import Denied, Invalid
from pydanube.operations.topics import AskTopicUse

from .cluster.membership import Membership


@dataclass(eq=False)
class PeerRequests:
    """Answers other brokers. Every call names a principal, and the authorizer is asked first."""

    authorizer: Authorizer
    security: Security
    producers: Producers
    unused: UnusedTopics
    membership: Membership

    def check(self, principal: Principal) -> None:
        """Raise Denied if the caller is not a broker of this cluster. Without authentication that cannot be known."""
        self.authorizer.check(principal, Action.ADMINISTER, BROKER)
        if self.security.is_required and not principal.is_broker:
            raise Denied(f"{principal.id} is no broker of this cluster: only those may ask for this")

    def is_proven(self, principal: Principal, broker: str, proof: str) -> bool:
        """Return whether the caller is surely a broker of this cluster: it has shown the cluster token, or it knows the
        proof of a living broker, which is in the metadata only. Raises Denied as `check` does."""
        self.check(principal)
        session = self.membership.find(broker)
        known = session.proof if session is not None else ""
        return principal.is_broker or (known != "" and hmac.compare_digest(known.encode(), proof.encode()))

    def principal_of(self, principal: Principal, on_behalf: Sequence[str]) -> Principal:
        """Return the principal that a broker asks for: its type, its name and its groups."""
        self.check(principal)
        if len(on_behalf) < 2:
            raise Invalid("on_behalf names the type and the name of a principal, then its groups")
        kind, name, *groups = on_behalf
        return Principal(name, kind, tuple(groups))

    def fence_producers(self, principal: Principal, request: wire.FenceProducers) -> None:
        """Fence the producers that one at another broker replaces; see codec.native.requests.FenceProducers."""
        self.check(principal)
        number, epoch = request.producer_id, request.producer_epoch
        if request.access_epoch:
            access = AccessRecord(request.access_epoch, number, epoch)
            self.producers.access_taken(request.topic_id, access)
        else:
            self.producers.producer_resumed(request.topic_id, ProducerRecord(number, epoch))

    def count_producers(self, principal: Principal, topic_id: int) -> wire.ProducerCount:
        """Return the live producers of a topic at this broker."""
        self.check(principal)
        return self.producers.live(topic_id)

    def topic_use(self, principal: Principal, request: AskTopicUse) -> int:
        """Return since when a topic or subscription is unused; see operations.topics.AskTopicUse."""
        self.check(principal)
        return self.unused.answer(request)
