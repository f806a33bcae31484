"""Chooses brokers for partitions that have none.

A partition goes to a broker that has the fewest partitions of the same topic; among those to the zone that has the
fewest; among those to the least loaded broker. How loaded a broker is, is its share of all partitions plus its share of
all traffic, so that many idle partitions weigh as much as a few busy ones.

Brokers come before zones: a zone with fewer brokers than the others does not get more partitions for each of them.

Invariants
    every partition is placed exactly once, on one of the given brokers
    equal arguments give equal placements, so that two brokers which decide at the same time mostly decide the same
    the partitions of a new topic differ by at most one between any two brokers, and between zones of equal size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple


class Candidate(NamedTuple):
    """A living broker that partitions can be given to."""

    name: str
    zone: str = ""
    """Empty: it names none. Brokers without a zone are a zone of their own."""
    partitions: int = 0
    """How many partitions it has, of all topics."""
    traffic: float = 0.0
    """How much it handles, in any unit that is the same for all brokers."""


class Unplaced(NamedTuple):
    """Partitions of one topic that have no broker."""

    topic: int
    indexes: Sequence[int]
    elsewhere: Mapping[str, int] = {}
    """How many other partitions of the topic each broker has."""


class _Ranked(NamedTuple):
    """A broker as it is compared with others; the smallest is chosen next."""

    of_topic: int
    load: float
    name: str


class _RankedZone(NamedTuple):
    """A zone, compared by its best broker, and among equals by how many partitions of the topic it has."""

    of_topic: int
    in_zone: int
    load: float
    name: str
    zone: str


def place(brokers: Sequence[Candidate], topics: Sequence[Unplaced]) -> dict[tuple[int, int], str]:
    """Return the name of a broker for each partition, by topic and index. Without brokers nothing is placed.

    n partitions of one topic over b brokers take O(b + n log b).
    """
    if not brokers:
        return {}
    loads = _Loads(brokers, sum(len(one.indexes) for one in topics))
    placed: dict[tuple[int, int], str] = {}
    for unplaced in topics:
        _place_topic(loads, unplaced, placed)
    return placed


class _Loads:
    """How loaded each broker is, with what was placed so far."""

    def __init__(self, brokers: Sequence[Candidate], added: int) -> None:
        by_name = sorted(brokers)  # sums of fractions depend on the order
        self._all_partitions = sum(one.partitions for one in by_name) + added or 1
        all_traffic = sum(one.traffic for one in by_name) or 1.0
        self._traffic_share = {one.name: one.traffic / all_traffic for one in by_name}
        self._partitions = {one.name: one.partitions for one in by_name}
        self.zone_of = {one.name: one.zone for one in by_name}

    def add(self, name: str) -> None:
        self._partitions[name] += 1

    def ranked(self, name: str, of_topic: int) -> _Ranked:
        load = self._traffic_share[name] + self._partitions[name] / self._all_partitions
        return _Ranked(of_topic, load, name)


def _place_topic(loads: _Loads, unplaced: Unplaced, placed: dict[tuple[int, int], str]) -> None:
    of_topic = Counter({name: unplaced.elsewhere.get(name, 0) for name in loads.zone_of})
    in_zone: Counter[str] = Counter()
    by_zone: dict[str, list[_Ranked]] = {}
    for name, zone in loads.zone_of.items():
        by_zone.setdefault(zone, []).append(loads.ranked(name, of_topic[name]))
        in_zone[zone] += of_topic[name]
    for brokers in by_zone.values():
        heapify(brokers)

    def ranked_zone(zone: str) -> _RankedZone:
        best = by_zone[zone][0]
        return _RankedZone(best.of_topic, in_zone[zone], best.load, best.name, zone)

    zones = [ranked_zone(zone) for zone in by_zone]
    heapify(zones)
    for index in unplaced.indexes:
        _, _, _, name, zone = zones[0]
        placed[unplaced.topic, index] = name
        of_topic[name] += 1
        in_zone[zone] += 1
        loads.add(name)
        heapreplace(by_zone[zone], loads.ranked(name, of_topic[name]))
        heapreplace(zones, ranked_zone(zone))
