"""`danube consume` without a subscription stops on a signal, however many partitions there are."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from pydanube.cli.connecting import Stop
from pydanube.cli.messages.consume import _next_batch
from pydanube.cli.messages.reading import AllPartitions, Bounds

MANY = 1_100
"""More than a broker lets wait on one connection."""


class StubbornReader:
    """A reader that never opens or never receives, and is slow to cancel."""

    def __init__(self, opens: bool, ended: asyncio.Event) -> None:
        self._opens, self._ended = opens, ended

    async def __aenter__(self) -> StubbornReader:
        if not self._opens:
            await self._stay()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ended.wait()

    async def batches(self) -> AsyncIterator[None]:
        await self._stay()
        yield None

    async def _stay(self) -> None:
        while not self._ended.is_set():
            try:
                await self._ended.wait()
            except asyncio.CancelledError:
                continue


class StubbornClient:
    def __init__(self, opens: bool) -> None:
        self._opens, self.ended = opens, asyncio.Event()

    async def describe_topic(self, _: str) -> SimpleNamespace:
        partitions = [SimpleNamespace(index=index) for index in range(3)]
        return SimpleNamespace(partitions=partitions, config=SimpleNamespace(partitions=3))

    def reader(self, *_: object, **__: object) -> StubbornReader:
        return StubbornReader(self._opens, self.ended)


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("how", ["timeout", "signal"])
async def test_readers_that_do_not_end_do_not_hold_it_up(opens: bool, how: str):
    client, stop, loop = StubbornClient(opens), Stop(), asyncio.get_running_loop()
    begin = loop.time()
    async with AllPartitions(client, "/default/t", Bounds()) as source:
        if how == "signal":
            loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
        assert await _next_batch(source, stop, 0.1 if how == "timeout" else None) is None
    assert loop.time() - begin < 60, "they never end by themselves"
    client.ended.set()


@pytest.mark.process
def test_more_partitions_than_fetches_may_wait(danube, start, topic):
    made = danube("produce", topic, "--partitions", str(MANY), "-m", "one")
    assert made.returncode == 0, made.stderr
    assert danube("consume", topic, "--from", "earliest", "--count", "1").stdout == "one\n"
    process = start("consume", topic, "--from", "earliest")
    assert process.stdout.readline() == "one\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0


@pytest.mark.process
def test_partitions_that_are_added_while_it_runs_are_read_from_their_beginning(danube, start, topic):
    danube("produce", topic, "--partitions", "1", "-m", "first")
    process = start("consume", topic, "--from", "earliest")
    assert process.stdout.readline() == "first\n"
    assert danube("topics", "grow", topic, "3").returncode == 0
    assert danube("produce", topic, "--partition", "2", "-m", "added").returncode == 0
    assert process.stdout.readline() == "added\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0


@pytest.mark.process
@pytest.mark.parametrize("how", [pytest.param("alone", marks=pytest.mark.exhaustive), "subscribed"])
def test_a_pattern_means_all_topics_that_match_and_those_to_come(danube, start, topic, how: str):
    options = ["--from", "earliest"] + (["-s", "all"] if how == "subscribed" else [])
    danube("produce", f"{topic}-1", "-m", "one")
    danube("produce", f"{topic}x", "-m", "another")
    process = start("consume", f"{topic}-*", *options)
    assert process.stdout.readline() == "one\n"
    danube("produce", f"{topic}-2", "-m", "two")
    assert process.stdout.readline() == "two\n"
    if how == "alone":
        assert danube("topics", "delete", f"{topic}-1", "--yes").returncode == 0
        danube("produce", f"{topic}-2", "-m", "three")
        assert process.stdout.readline() == "three\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0
