"""A stream from topic to topic is killed with -9, at every step and at random: every row arrives once, in order."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from brokers import BrokerProcess
from kill_driver import STEPS
from spark_broker import until
from spark_cluster import standalone
from spark_killing import Driver, Scene, chosen_seed, executors

pytestmark = [pytest.mark.spark_kill, pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with BrokerProcess(tmp_path / "data") as broker:
        scene = Scene(broker, tmp_path)
        try:
            yield scene
        finally:
            scene.end()


def test_the_driver_is_killed_between_every_pair_of_steps(scene: Scene) -> None:
    for step in STEPS:
        scene.publish(100)
        driver = scene.start(kill_at=step)
        driver.until_committed()  # it has recovered from the death before
        driver.arm()
        scene.publish(400)
        driver.until_dead()
        print(f"killed at: {step}")
    scene.publish(100)
    driver = scene.start()
    driver.until_committed()
    driver.kill()
    print("killed at: Spark committed")
    scene.publish(400)
    scene.check(scene.start())


def killed_at_random(scene: Scene, kills: int) -> None:
    """Drivers and their Python workers die while rows keep coming."""
    chance = random.Random(chosen_seed())
    victims: Counter[str] = Counter()
    with scene.filled(chance):
        driver = scene.start()
        while victims.total() < kills:
            if not driver.alive:  # a worker took the query with it: it was the source's, or the commit's
                driver = scene.start()
            driver.until_committed(chance.randint(1, 3))
            victim = chance.choice(["driver", "worker", "worker"])
            _pause(chance)
            if victim == "driver" and driver.alive:
                driver.kill()
            elif victim == "driver" or not _kill_worker(driver, chance):
                continue
            victims[victim] += 1
            print(f"kill {victims.total()} of {kills}: {victim}, {driver.committed} micro-batches so far")
        if not driver.alive:
            driver = scene.start()
        driver.until_committed(2)
    print(f"killed: {dict(victims)}")
    if not driver.alive:
        driver = scene.start()
    scene.check(driver)


def _pause(chance: random.Random) -> None:
    """Not to wait for anything: to be at no place in particular of a micro-batch."""
    time.sleep(chance.uniform(0, 0.6))


def _kill_worker(driver: Driver, chance: random.Random) -> bool:
    workers = driver.workers()
    if not workers:
        return False
    try:
        os.kill(chance.choice(workers), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_drivers_and_workers_are_killed_at_random(scene: Scene) -> None:
    killed_at_random(scene, 10)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_drivers_and_workers_are_killed_a_hundred_times(scene: Scene) -> None:
    killed_at_random(scene, 100)


def _went_on(driver: Driver, committed: int) -> bool:
    assert driver.alive, driver.log()
    return driver.committed > committed + 1


def test_the_broker_is_killed_under_a_running_query(scene: Scene) -> None:
    chance = random.Random(chosen_seed())
    driver = scene.start()
    with scene.filled(chance):
        driver.until_committed()
        for _ in range(3):
            _pause(chance)
            scene.broker.kill()
            _pause(chance)
            scene.broker.start()
            until(partial(_went_on, driver, driver.committed), "the query goes on", driver.log)
    scene.check(driver)


def test_executors_of_a_cluster_are_killed_under_a_running_query(scene: Scene, tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    with standalone(cluster) as master:
        driver = scene.start(master)
        with scene.filled(chance):
            for _ in range(3):
                driver.until_committed(2)
                _pause(chance)
                for pid in executors(cluster):
                    os.kill(pid, signal.SIGKILL)
                until(partial(_went_on, driver, driver.committed), "the query goes on", driver.log)
        scene.check(driver)
