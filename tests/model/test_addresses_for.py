"""Which addresses of a broker a client is told: those inside a network, or those for all."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses
from pydanube.model.cluster import BrokerSession, is_inside

OUTSIDE, INSIDE = BrokerAddresses("broker.example.net:6655"), BrokerAddresses("10.0.0.7:6655")
NETWORKS = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
SESSION = BrokerSession("a", 1, OUTSIDE, inside=INSIDE)


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("10.1.2.3", INSIDE),
        ("fd00::1", INSIDE),
        ("fd00::1%eth0", INSIDE),
        ("::ffff:10.1.2.3", INSIDE),
        ("192.0.2.1", OUTSIDE),
        ("2001:db8::1", OUTSIDE),
        ("", OUTSIDE),
        ("/run/socket", OUTSIDE),
    ],
)
def test_a_client_inside_is_told_the_inside_address(client: str, told: BrokerAddresses) -> None:
    assert SESSION.addresses_for(is_inside(client, NETWORKS)) == told


def test_without_networks_or_inside_addresses_all_are_told_the_same() -> None:
    assert SESSION.addresses_for(is_inside("10.1.2.3", ())) == OUTSIDE
    assert BrokerSession("a", 1, OUTSIDE, inside=NO_ADDRESSES).addresses_for(True) == OUTSIDE


def test_brokers_among_themselves_use_the_inside_address() -> None:
    assert SESSION.peer_address == "10.0.0.7:6655"
    assert BrokerSession("a", 1, OUTSIDE).peer_address == "broker.example.net:6655"
