"""`danube bench` with little load: every mode with real processes, and a fault that it must detect."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import danube

from pydanube.cli.bench import baselines
from pydanube.cli.bench.bare_pipeline import BatchStream, Forwarder, PipelinePublisher
from pydanube.cli.bench.delivery import backlog_curve
from pydanube.cli.bench.recovering import measure as recover
from pydanube.cli.bench.results import Result, Throughput
from pydanube.cli.bench.scenario import Scenario
from pydanube.codec.batch import encode

pytestmark = pytest.mark.process


def bench(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pydanube.cli", "bench", *arguments], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def measured(*arguments: str) -> dict:
    return json.loads(bench("--json", *arguments))


def test_batches_with_verification_and_all_baselines(tmp_path: Path):
    told = measured("--count", "60000", "--verify", "--data-dir", str(tmp_path))
    assert (told["sent"], told["received"], told["verified"], told["faults"]) == (60_000, 60_000, True, {})
    assert told["throughput"]["end_to_end"] > 0
    assert told["ratios"]["throughput_to_pipeline"] > 0
    base = told["baselines"]
    assert base["loopback_gigabytes_per_second"] > 0
    assert base["sync"]["p50"] <= base["sync"]["p99"] <= base["sync"]["p999"]
    assert base["pipeline"]["end_to_end"] > 0
    assert told["broker_bytes_peak"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_several_of_everything_message_by_message():
    told = measured(
        "--no-baselines", "--verify", "--receive", "messages", "--count", "12000", "--batch", "100", "--size", "33",
        "--partitions", "3", "--topics", "2", "--producers", "2", "--consumers", "2", "--compression", "lz4",
    )  # fmt: skip
    assert (told["sent"], told["received"], told["verified"]) == (12_000, 24_000, True)


@pytest.mark.exhaustive
def test_a_shared_subscription_is_verified_over_all_of_its_consumers():
    told = measured("--no-baselines", "--verify", "--count", "20000", "--type", "shared", "--consumers", "3")
    assert (told["sent"], told["received"], told["faults"]) == (20_000, 20_000, {})


@pytest.mark.exhaustive
def test_a_key_shared_subscription_is_verified_by_key():
    told = measured(
        "--no-baselines", "--verify", "--count", "12000", "--type", "key-shared", "--keys", "50", "--consumers", "3",
        "--partitions", "2", "--producers", "2", "--receive", "messages",
    )  # fmt: skip
    assert (told["received"], told["faults"]) == (12_000, {})


@pytest.mark.exhaustive
def test_subscriptions_are_spread_over_the_consumers_and_each_gets_everything():
    told = measured("--no-baselines", "--verify", "--count", "5000", "--subscriptions", "5", "--consumers", "2")
    assert (told["sent"], told["received"], told["faults"]) == (5_000, 25_000, {})
    assert told["throughput"]["delivered"] > told["throughput"]["end_to_end"]


@pytest.mark.exhaustive
def test_a_topic_that_stores_nothing_may_lose_but_not_repeat():
    told = measured(
        "--no-baselines", "--verify", "--count", "5000", "--non-reliable", "--type", "failover", "--consumers", "2"
    )
    assert told["faults"] == {}
    assert told["received"] + told["dropped"] == 5_000


@pytest.mark.exhaustive
async def test_the_cost_of_a_backlog_is_measured_at_every_size(tmp_path: Path):
    curve = await backlog_curve(tmp_path, [1_000, 3_000], "key-shared")
    assert [point["unacked"] for point in curve] == [1_000, 3_000]
    assert all(point["ack_ms"] > 0 and point["redelivery_ms"] > 0 for point in curve)


@pytest.mark.exhaustive
def test_latency_of_unbatched_sends():
    told = measured("--latency", "--rate", "500", "--count", "400", "--ack-level", "memory", "--verify")
    latency = told["latency"]
    assert latency["publish_to_ack"]["samples"] == latency["publish_to_receive"]["samples"] == 380
    assert told["verified"] is True
    assert told["baselines"]["echo"]["p99"] > 0
    assert told["baselines"]["sync"] is None


@pytest.mark.exhaustive
def test_time_instead_of_a_count_and_no_consumer():
    told = measured("--no-baselines", "--seconds", "0.3", "--consumers", "0", "--ack-level", "written")
    assert told["sent"] > 0
    assert told["throughput"]["end_to_end"] == 0


@pytest.mark.exhaustive
def test_a_broker_that_runs_already(served):
    told = measured("--no-baselines", "--url", served.url, "--count", "1000", "--rate", "5000", "--batch", "100")
    assert told["received"] == 1_000
    assert told["throughput"]["publish"] < 7_000


def test_the_table_says_what_was_measured():
    shown = bench("--no-baselines", "--count", "2000", "--verify")
    assert shown.startswith("100 B messages in batches of 500, durable acks, 1 producer, 1 consumer")
    assert "2,000 messages: each once, in order, content checked" in shown


@pytest.mark.parametrize(
    "wrong",
    [
        ("--size", "8"),
        ("--batch", "0"),
        ("--producers", "0"),
        ("--latency", "--consumers", "2"),
        ("--ack-level", "x"),
        ("--count", "0"),
        ("--verify", "--consumers", "0"),
        ("--type", "exclusive", "--subscriptions", "1", "--consumers", "2"),
        ("--type", "key-shared", "--keys", "0"),
        ("--subscriptions", "2", "--consumers", "0"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_wrong_usage(wrong: tuple[str, ...]):
    refused = danube("bench", *wrong)
    assert (refused.returncode, "Error: " in refused.stderr) == (2, True)


def test_sigterm_ends_it_like_ctrl_c_and_leaves_nothing(start, tmp_path: Path):
    process = start("bench", "--seconds", "60", "--data-dir", str(tmp_path))
    while not list(tmp_path.glob("*/broker/wal/MANIFEST")):
        assert process.poll() is None
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "danube: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_no_broker_at_the_url_is_a_failure():
    told = bench("--url", "danube://127.0.0.1:1", "--count", "10", code=1)
    assert told.startswith("danube: gave up after 3 s") and "127.0.0.1:1" in told


@pytest.mark.parametrize("ack_level", ["durable", "written", "memory"])
async def test_the_bare_pipeline_moves_every_message(tmp_path: Path, ack_level: str):
    scenario = Scenario(count=20_100, ack_level=ack_level, size=50, batch=200)
    rates = await baselines.pipeline(scenario, tmp_path)
    assert rates["end_to_end_per_second"] > 0
    assert (rates["syncs"] > 0) == (ack_level == "durable")


async def test_the_bare_pipeline_loses_nothing_that_came_before_its_consumer(tmp_path: Path):
    loop = asyncio.get_running_loop()
    forwarder = Forwarder("memory", str(tmp_path))
    arrived, take = asyncio.Event(), forwarder.take
    forwarder.take = lambda batches: (take(batches), arrived.set())
    inlet = await loop.create_server(forwarder.inlet, "127.0.0.1", 0)
    outlet = await loop.create_server(forwarder.outlet, "127.0.0.1", 0)
    batch = encode([b"early"], publish_times=1_700_000_000_000_000)
    transport, publisher = await loop.create_connection(PipelinePublisher, *inlet.sockets[0].getsockname())
    transport.write(batch)
    await arrived.wait()
    received: asyncio.Future[bytes] = loop.create_future()
    consumer, _ = await loop.create_connection(
        lambda: BatchStream(lambda batches: received.set_result(bytes(batches[0]))), *outlet.sockets[0].getsockname()
    )
    assert await received == batch
    await publisher.until(1)
    for one in (transport, consumer, inlet, outlet):
        one.close()


async def test_the_bare_pipeline_takes_batches_larger_than_its_chunks(tmp_path: Path):
    rates = await baselines.pipeline(Scenario(count=9, size=3_000_000, batch=2), tmp_path)
    assert rates["end_to_end_per_second"] > 0


async def test_recovery_reads_every_record_back(tmp_path: Path):
    found = await recover(tmp_path, size=100, batch=5, records=2_000)
    assert found.records >= 2_000
    assert found.megabytes_per_second > 0


def test_ratios_are_over_the_baselines_of_the_same_run():
    result = Result(scenario=Scenario(), sent=1, received=1)
    result.throughput = Throughput(publish=50, end_to_end=40, size=100)
    result.baselines.pipeline = Throughput(publish=100, end_to_end=80, size=100)
    assert result.ratios() == {"throughput_to_pipeline": 0.5}
