"""A real broker stopped, started again, started twice, and run into its limits."""

import asyncio
import logging
import resource
import signal
import subprocess
import sys

import pytest
from brokers import PORTS, BrokerProcess

import pydanube
from exhaustive import several
from pydanube.runtime import telemetry

pytestmark = pytest.mark.process
TOPIC = "/default/orders"


async def publish(url: str, payloads: list[bytes]) -> list[int]:
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        receipts = await asyncio.gather(*[producer.send(one) for one in payloads])
        return [receipt.offset for receipt in receipts]


@pytest.mark.parametrize("number", several([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
async def test_a_clean_stop_keeps_topics_offsets_and_cursors(tmp_path, number):
    with BrokerProcess(tmp_path / "data") as broker:
        assert await publish(broker.url, [b"%d" % n for n in range(10)]) == list(range(10))
        async with (
            pydanube.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="billing", start="earliest") as consumer,
        ):
            for _ in range(7):
                await consumer.ack(await consumer.receive(timeout=60))
        broker._process.send_signal(number)
        assert broker._process.wait(120) == 0
        broker.start()
        assert await publish(broker.url, [b"10"]) == [10]
        async with (
            pydanube.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="billing", start="latest") as consumer,
        ):
            got = [(await consumer.receive(timeout=60)).payload for _ in range(4)]
        assert got == [b"7", b"8", b"9", b"10"]


async def test_acks_survive_kill_9_without_being_waited_for(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        await publish(broker.url, [b"%d" % n for n in range(10)])
        async with (
            pydanube.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="billing", start="earliest") as consumer,
        ):
            for _ in range(5):
                await consumer.ack(await consumer.receive(timeout=60))
            await consumer.flush()
            await broker.restart()
            # The same consumer object goes on: it reconnects and gets what it has not acked.
            again = [await consumer.receive(timeout=60) for _ in range(5)]
            assert {message.payload for message in again} == {b"5", b"6", b"7", b"8", b"9"}


def test_two_brokers_never_share_a_directory(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        second = subprocess.run(
            [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(broker.directory), *PORTS],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode == 1
        assert str(broker.pid) in second.stderr
        assert "Traceback" not in second.stderr
        assert second.stdout == ""


@pytest.mark.exhaustive
async def test_a_file_size_limit_refuses_or_moves_on_and_loses_nothing(tmp_path):
    limit = 2 << 20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with BrokerProcess(tmp_path / "data", before_start=limited) as broker:
        payloads = [bytes([n]) * 50_000 for n in range(100)]
        assert await publish(broker.url, payloads) == list(range(100)), "5 MB through files that may hold 2"
        await broker.restart()
        async with pydanube.connect(broker.url) as client:
            reader = client.reader(TOPIC, partition=0, start="earliest", end="latest")
            async with reader:
                assert [message.payload async for message in reader] == payloads
    assert "file size limit" in broker.log.read_text()


@pytest.mark.exhaustive
async def test_a_consumer_that_stops_reading_slows_nobody_and_costs_no_memory(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC)
            for name in ("stuck", "lively"):
                await client.create_subscription(TOPIC, name, start="earliest")
        stuck = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STUCK, broker.url, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert (await stuck.stdout.readline()).strip() == b"attached"
            stuck.send_signal(signal.SIGSTOP)
            before = broker.resident_bytes()
            async with (
                pydanube.connect(broker.url) as client,
                client.producer(TOPIC) as producer,
                client.consumer(TOPIC, subscription="lively") as consumer,
            ):
                payload, count = b"x" * 100_000, 2_000
                sending = asyncio.gather(*[producer.send(payload) for _ in range(count)])
                for _ in range(count):
                    await consumer.ack(await consumer.receive(timeout=60))
                await sending
            grown = broker.resident_bytes() - before
            assert grown < 150 << 20, "200 MB went past a consumer that reads nothing: cache and buffers are bounded"
        finally:
            stuck.kill()
            await stuck.wait()


STUCK = """
import asyncio, sys, pydanube
async def main():
    async with pydanube.connect(sys.argv[1]) as client:
        async with client.consumer("/default/orders", subscription="stuck") as consumer:
            print("attached", flush=True)
            await consumer.receive()
            await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_an_older_copy_of_the_metadata_is_refused(tmp_path):
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        await publish(broker.url, [b"a"])
        broker.stop()
        older = {name: (data / name).read_bytes() for name in ("metadata.db", "metadata.journal")}
        broker.start()
        async with pydanube.connect(broker.url) as client:
            await client.create_topic("/default/later")
        broker.stop()
        for name, content in older.items():
            (data / name).write_bytes(content)
        with pytest.raises(AssertionError, match="put back the newest copy of the metadata"):
            broker.start()


@pytest.mark.exhaustive
async def test_an_older_copy_of_the_database_alone_is_brought_up_to_date_from_its_journal(tmp_path):
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        await publish(broker.url, [b"a"])
        broker.stop()
        older = (data / "metadata.db").read_bytes()
        broker.start()
        async with pydanube.connect(broker.url) as client:
            await client.create_topic("/default/later")
        broker.stop()
        (data / "metadata.db").write_bytes(older)
        broker.start()
        async with pydanube.connect(broker.url) as client:
            assert "/default/later" in [str(topic) for topic in await client.list_topics()]
    assert (data / "metadata.db.damaged-1").read_bytes() == older


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_latest", [True, False])
async def test_a_reader_that_ends_behind_a_gap_of_reserved_offsets_waits_for_nothing(tmp_path, monkeypatch, is_latest):
    monkeypatch.setattr("pydanube.client.history.reader.WAIT_MS", 60_000)
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, ack_level="written")
        assert await publish(broker.url, [b"%d" % n for n in range(10)]) == list(range(10))
        await broker.restart()
        async with pydanube.connect(broker.url) as client:
            (partition,) = await client.partitions(TOPIC)
            assert partition.end_offset > 10, "a crash leaves a gap up to what was reserved"
            end = "latest" if is_latest else partition.end_offset
            async with asyncio.timeout(30):  # less than the broker would wait for a message
                async with client.reader(TOPIC, start="earliest", end=end) as reader:
                    assert [message.offset async for message in reader] == list(range(10))
                    assert reader.next_offset == partition.end_offset


async def test_a_reader_says_which_offsets_a_crash_left_without_messages(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())  # as in a program that logs by itself
    caplog.set_level(logging.WARNING, "pydanube.client")
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, ack_level="written")
        assert await publish(broker.url, [b"%d" % n for n in range(10)]) == list(range(10))
        await broker.restart()
        (offset,) = await publish(broker.url, [b"after"])
        assert offset > 10
        async with (
            pydanube.connect(broker.url) as client,
            client.reader(TOPIC, start="earliest", end="latest") as reader,
        ):
            assert [message.offset async for message in reader] == [*range(10), offset]
    (told,) = [text for one in caplog.records if "reader.gap_passed" in (text := one.getMessage())]
    assert f"start=10 end={offset}" in told
