"""Streaming Spark queries over a cluster whose brokers are restarted, lost and replaced: every row arrives once.

One query copies a topic to another by staged writes, one lands a topic in a Delta table. `failOnDataLoss` is on, so a
message that a query could not find would end it. The seed is printed; DANUBE_SEED repeats a run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_world import ClusterBroker, ClusterWorld, blocking_world
from entry_points import installed
from etcd_cluster import missing_etcd
from killing_stages import AT, DEATH
from spark_killing import SINK, SOURCE, Driver, Scene, chosen_seed, until
from test_table_kills import TableScene

import pydanube
from pydanube.model.errors import DanubeError

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.soak,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.timeout(1800),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    with blocking_world(tmp_path / "cluster", members=1) as world:
        yield world


@pytest.fixture(autouse=True)
def _cluster_directory(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()


@pytest.fixture
def scene(world: ClusterWorld, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(world, tmp_path)
    try:
        yield scene
    finally:
        scene.end()


@pytest.fixture
def landing(world: ClusterWorld, tmp_path: Path) -> Iterator[TableScene]:
    scene = TableScene(world, tmp_path)
    try:
        yield scene
    finally:
        scene.end()


def owners(world: ClusterWorld, topic: str) -> list[ClusterBroker]:
    """Return the broker that owns each partition, once all have one that lives."""
    by_address = {broker.outside.address: broker for broker in world.brokers if broker.is_alive}
    found: list[ClusterBroker] = []

    def all_live() -> bool:
        try:
            with pydanube.connect_blocking(world.url, timeout=10) as client:
                addresses = [one.owner for one in client.partitions(topic)]
        except DanubeError:
            return False
        found[:] = [by_address[one] for one in addresses if one in by_address]
        return len(found) == len(addresses)

    until(all_live, f"{topic} is served", world.logs)
    return found


def goes_on(driver: Driver) -> None:
    """Wait until the query has finished two more micro-batches: one that it began before, and one after."""
    goal = driver.committed + 2
    until(lambda: not driver.alive or driver.committed >= goal, f"{goal} micro-batches", driver.log)
    assert driver.alive, driver.log()


def restart_all(world: ClusterWorld, driver: Driver) -> None:
    for broker in world.brokers:
        began = time.monotonic()
        assert broker.stop() == 0
        broker.start()
        goes_on(driver)
        print(f"{broker.name} restarted by SIGTERM; the query went on after {time.monotonic() - began:.1f} s")


def lose_owner(world: ClusterWorld, driver: Driver, topic: str, chance: random.Random) -> None:
    """Kill an owner at no place in particular of a micro-batch, and start it again after others have replaced it."""
    time.sleep(chance.uniform(0, 0.6))  # nothing is waited for
    lost = chance.choice(owners(world, topic))
    began = time.monotonic()
    lost.kill()
    assert lost not in owners(world, topic)
    goes_on(driver)
    print(f"{lost.name} killed, an owner of {topic}; the query went on after {time.monotonic() - began:.1f} s")
    lost.start()
    goes_on(driver)


def disturb(world: ClusterWorld, driver: Driver, chance: random.Random, topics: list[str]) -> None:
    driver.until_committed()
    restart_all(world, driver)
    for topic in topics:
        lose_owner(world, driver, topic, chance)


def no_loss_reported(driver: Driver) -> None:
    log = driver._log.read_text(errors="replace")
    assert "failOnDataLoss" not in log and "messages_lost" not in log, driver.log()


def test_a_query_from_topic_to_topic_goes_on_over_restarts_and_failovers(world: ClusterWorld, scene: Scene) -> None:
    chance = random.Random(chosen_seed())
    driver = scene.start()
    with scene.filled(chance):
        disturb(world, driver, chance, [SOURCE, SINK, SOURCE, SINK])
    scene.check(driver)
    no_loss_reported(driver)


def test_a_landing_in_a_delta_table_goes_on_over_restarts_and_failovers(
    world: ClusterWorld, landing: TableScene
) -> None:
    chance = random.Random(chosen_seed())
    driver = landing.start_landing()
    with landing.filled(chance):
        disturb(world, driver, chance, [SOURCE, SOURCE])
    until(lambda: not driver.alive or sum(landing.rows().values()) >= landing._published, "it catches up", driver.log)
    assert driver.alive, driver.log()
    driver.end()
    assert landing.rows() == landing.published()
    assert len(landing.published()) == landing._published
    print(f"{landing._published} rows in {driver.committed} micro-batches: each once")
    no_loss_reported(driver)


STEPS = [
    f"{side} {step}"
    for step in (
        "a stage is put",
        "the put of decisions and pending and queries",
        "a batch is published",
        "a batch is stored",
        "the delete of pending",
        "stages are deleted",
        "the delete of decisions",
    )
    for side in ("before", "after")
    if f"{side} {step}" not in ("after a batch is published", "before a batch is stored")
]
"""Of a staged write, from the first byte that is prepared to the last that is cleaned up after its commit."""


@pytest.fixture
def killing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ClusterWorld, Path]]:
    """A cluster whose object store kills the broker that gets to the step in the file, and that file."""
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path / "site", "killing", "killing_stages"))
    environment = {"KILLING_FILE": str(tmp_path / "kill")}
    store = f"killing://{tmp_path / 'objects'}"
    with blocking_world(tmp_path / "cluster", storage_url=store, environment=environment, members=1) as world:
        yield world, tmp_path / "kill"


def the_dead(world: ClusterWorld) -> list[ClusterBroker]:
    return [broker for broker in world.brokers if not broker.is_alive]


def dies_at(world: ClusterWorld, file: Path, step: str, log: Callable[[], str]) -> ClusterBroker:
    """Let a broker die at a step of a staged write; return which one it was, after it is dead."""
    steps = file.with_suffix(".steps")
    steps.write_text("")
    file.with_suffix(".new").write_text(AT + step)
    file.with_suffix(".new").rename(file)
    until(lambda: bool(the_dead(world)), f"a broker dies {step}", lambda: f"{log()}\n{steps.read_text()[-1000:]}")
    (dead,) = the_dead(world)
    assert f"{step}{DEATH}" in steps.read_text().splitlines()
    assert dead.ended(10) == -9
    return dead


def test_brokers_that_die_between_the_steps_of_a_staged_write_lose_and_repeat_nothing(
    killing: tuple[ClusterWorld, Path], tmp_path: Path
) -> None:
    world, file = killing
    chance = random.Random(chosen_seed())
    scene = Scene(world, tmp_path)
    try:
        driver = scene.start()
        with scene.filled(chance):
            driver.until_committed()
            for step in STEPS:
                dead = dies_at(world, file, step, driver.log)
                began = time.monotonic()
                goes_on(driver)
                print(f"{dead.name} died {step}; the query went on after {time.monotonic() - began:.1f} s")
                dead.start()
                goes_on(driver)
        scene.check(driver)
        no_loss_reported(driver)
    finally:
        scene.end()
