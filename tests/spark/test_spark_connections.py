"""Connections of a worker: shared, closed when idle, and never inherited from a parent process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from pydanube.model.errors import Unavailable
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions, WriteOptions
from pydanube.spark.reading.batch_reader import DanubeReader
from pydanube.spark.writing.staged_writer import DanubeStreamWriter, DanubeWriter

if TYPE_CHECKING:
    from spark_broker import Broker


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    connections.close_all()


def test_whoever_asks_alike_gets_the_same_client(broker: Broker) -> None:
    with connections.client(broker.servers) as first, connections.client(broker.servers) as second:
        assert first is second
    with connections.client(broker.servers) as third:
        assert third is first
        assert third.list_topics() == []
    with connections.client(broker.servers, timeout=5) as other:
        assert other is not first


def test_threads_that_ask_at_once_open_one(broker: Broker) -> None:
    found: list[object] = []

    def ask() -> None:
        with connections.client(broker.servers) as client:
            client.list_topics()
            found.append(client)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


def test_a_client_that_nobody_used_for_long_is_closed_when_another_is_asked_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    with connections.client(broker.servers) as used:
        with connections.client(broker.servers, timeout=5) as idle:
            pass
        with connections.client(broker.servers, timeout=6):
            assert idle._inner._closed
            assert not used._inner._closed
            assert used.list_topics() == []


def test_a_broker_that_is_not_there_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with pytest.raises(Unavailable), connections.client("127.0.0.1:1", timeout=0.2):
        raise AssertionError("nobody listens there")
    assert threading.active_count() == before


GONE = "127.0.0.1:1"
"""The one listed broker, which is gone when a task process starts."""


def test_a_task_that_reads_knows_the_brokers_of_the_driver(broker: Broker) -> None:
    with connections.client(broker.servers) as client:
        client.create_topic("/default/orders")
        with client.producer("/default/orders") as producer:
            producer.send(b"one")
    options = {"servers": broker.servers, "topic": "/default/orders", "timeout": "10", "columns": "payload"}
    (planned,) = DanubeReader(ReadOptions.parse(options)).partitions()
    sent = pickle.loads(pickle.dumps(planned))
    connections._learned.clear()
    read = DanubeReader(ReadOptions.parse({**options, "servers": GONE})).read(sent)
    assert [row for batch in read for row in batch.to_pylist()] == [{"payload": b"one"}]


@pytest.mark.parametrize("make", [lambda one: DanubeWriter(one, "query", "run", 0), DanubeStreamWriter])
def test_a_task_that_writes_knows_the_brokers_of_the_driver(broker: Broker, make: Callable[..., object]) -> None:
    options = WriteOptions.parse({"servers": GONE, "topic": "/default/orders"})
    connections.learn(options.servers, broker.url)
    sent = pickle.dumps(make(options))
    connections._learned.clear()
    assert "_servers" not in vars(pickle.loads(sent))
    with connections.client(options.servers) as client:
        assert client.list_topics() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_connects_for_itself(broker: Broker) -> None:
    with connections.client(broker.servers) as parents:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                with connections.client(broker.servers) as own:
                    answer = b"own" if own is not parents and own.list_topics() == [] else b"shared"
                connections.close_all()
            except BaseException as error:
                answer = repr(error).encode()
            os.write(write, answer)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 1000) == b"own"
        assert parents.list_topics() == []


@pytest.mark.parametrize(("main", "frozen"), [("pyspark.daemon", True), ("somebodys.program", False)])
def test_only_workers_of_spark_set_aside_what_they_imported(main: str, frozen: bool) -> None:
    program = f"""
        import gc, sys, types
        sys.modules["__main__"].__spec__ = types.SimpleNamespace(name={main!r})
        from pydanube.spark.python_workers import freeze_imports
        freeze_imports()
        before = gc.get_freeze_count()
        mine = [object() for _ in range(100)]
        freeze_imports()
        assert gc.get_freeze_count() == before
        import wave
        freeze_imports()
        assert (gc.get_freeze_count() > before) == (before > 0)
        print(before > 0)
    """
    ran = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(frozen)
