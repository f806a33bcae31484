"""Names of topics as Danube clients write them, for calls that concern a whole topic."""

from __future__ import annotations

from pydanube.broker import Broker
from pydanube.core.access import Action, Principal
from pydanube.model.names import TopicAddress, TopicName


async def known_address(broker: Broker, text: str) -> TopicAddress:
    """Return an address, about which this broker knows what is in the metadata: another broker of the cluster may have
    created the topic a moment ago. Raises Invalid if it is none."""
    address = TopicAddress.parse(text)
    await broker.addresses.refresh(address)
    return address


async def topic_of(broker: Broker, principal: Principal, text: str) -> TopicName:
    """Return the topic that a name means: its own, or for `/namespace/topic-part-k` the topic with that partition.

    A topic that does not exist is returned too; the broker's calls raise NotFound for it. Raises Denied if the caller
    may not see the topic: which topic a name means says whether it exists.
    """
    address = await known_address(broker, text)
    broker.addresses.check(principal, Action.DESCRIBE, address)
    place = broker.addresses.find(principal, address)
    if place is not None:
        return place.topic
    return address.topic if address.topic is not None else broker.addresses.get(principal, address).topic


def is_partition(broker: Broker, principal: Principal, text: str) -> bool:
    """Return whether a name is that of an existing partition of a partitioned topic."""
    address = TopicAddress.parse(text)
    place = broker.addresses.find(principal, address)
    return place is not None and place.topic != address.topic


def client_names(broker: Broker, principal: Principal, topic: str) -> list[str]:
    """Return the names by which clients address a topic: its own, or those of its partitions."""
    return broker.addresses.names(principal, TopicAddress.parse(topic))
