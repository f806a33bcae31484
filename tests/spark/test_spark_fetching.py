"""What tasks read: each offset of a range once, from the store, from the broker, and across both."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from spark_broker import TOPIC, Broker, until

import pydanube
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.codec.native import requests
from pydanube.model.errors import Corrupt, NotFound, Refused, Unavailable
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions
from pydanube.spark.reading import direct_reads as direct
from pydanube.spark.reading import fetching
from pydanube.spark.reading.planning import OffsetRange
from pydanube.testing import _server_thread, broker_thread

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from object_servers import S3_BUCKET, s3_server, s3_settings


@pytest.fixture(autouse=True)
def nothing_is_known_before() -> Iterator[None]:
    """Reset the state of the process to that of a new worker."""
    direct._avoided.clear()
    yield
    connections.close_all()


def options(servers: str, **chosen: str) -> ReadOptions:
    return ReadOptions.parse({"servers": servers, "topic": TOPIC, "timeout": "10", **chosen})


def publish(client: pydanube.BlockingClient, first: int, end: int, batch: int = 100, topic: str = TOPIC) -> None:
    """Publish messages that contain their number, in batches of this size."""
    with client.producer(topic, batch_messages=batch) as producer:
        for start in range(first, end, batch):
            numbers = range(start, min(end, start + batch))
            producer.send_many([b"%d" % one for one in numbers], keys=[f"key-{one}" for one in numbers])


def publish_payloads(client: pydanube.BlockingClient, payloads: list[bytes]) -> None:
    """Publish each payload as a batch."""
    with client.producer(TOPIC, batch_messages=1) as producer:
        producer.send_many(payloads)


def planned(
    client: pydanube.BlockingClient, chosen: ReadOptions, start: int = 0, end: int | None = None
) -> OffsetRange:
    """Return a range as the driver plans it."""
    topic = client.describe_topic(TOPIC)
    last = topic.partitions[0].end_offset if end is None else end
    (found,) = direct.locate_segments([OffsetRange(TOPIC, topic.topic_id, 0, start, last)], chosen, client)
    return found


def numbers(wanted: OffsetRange, chosen: ReadOptions) -> list[int]:
    """Read a range and return its offsets, after checking that payloads and offsets agree."""
    rows = [row for batch in fetching.read_ranges([wanted], chosen) for row in batch.to_pylist()]
    assert [int(row["payload"]) for row in rows] == [row["offset"] for row in rows]
    return [row["offset"] for row in rows]


@pytest.fixture
def history(client: pydanube.BlockingClient) -> pydanube.BlockingClient:
    """[0, 1000) and [1000, 1700) in two segments, [1700, 2000) in the log only."""
    client.create_topic(TOPIC)
    for first, end in ((0, 1000), (1000, 1700)):
        publish(client, first, end)
        client.upload_storage(TOPIC)
    publish(client, 1700, 2000)
    return client


# -- the seam ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct_read", ["always", "never"])
def test_ranges_are_read_exactly(history: pydanube.BlockingClient, broker: Broker, direct_read: str) -> None:
    chosen = options(broker.servers, directRead=direct_read)
    ranges = [(0, 2000), (0, 1000), (999, 1001), (1650, 1750), (1699, 1701), (1700, 2000), (1, 1999), (150, 151)]
    for start, end in [*ranges, (700, 700)]:
        wanted = planned(history, chosen, start, end)
        assert bool(wanted.segments) == (direct_read == "always" and start < min(end, 1700))
        assert numbers(wanted, chosen) == list(range(start, end))


def test_a_range_that_was_cut_in_pieces_is_read_exactly(history: pydanube.BlockingClient, broker: Broker) -> None:
    chosen = options(broker.servers, directRead="always")
    wanted = planned(history, chosen)
    pieces = [wanted.part(start, min(2000, start + 333)) for start in range(0, 2000, 333)]
    assert [number for piece in pieces for number in numbers(piece, chosen)] == list(range(2000))


def test_stretches_alternate_between_store_and_broker() -> None:
    from pydanube.client.history.coverage import SegmentInfo, split_by_storage

    def segment(first: int, end: int) -> SegmentInfo:
        return SegmentInfo(f"{first}.seg", 0, 1, 0, first, end)

    held = (segment(0, 10), segment(10, 20), segment(30, 40), segment(40, 60))
    found = split_by_storage(held, 5, 50)
    assert [(start, end, [one.object for one in of]) for start, end, of in found] == [
        (5, 20, ["0.seg", "10.seg"]),
        (20, 30, []),
        (30, 50, ["30.seg", "40.seg"]),
    ]


def test_segments_are_read_while_no_broker_runs(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as url, pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 0, 1000)
        client.upload_storage(TOPIC)
        chosen = options(url, directRead="always")
        wanted = planned(client, chosen)
    assert numbers(wanted, chosen) == list(range(1000))


def test_auto_leaves_small_ranges_to_the_broker_and_reads_large_ones_from_the_store(
    client: pydanube.BlockingClient, broker: Broker
) -> None:
    client.create_topic(TOPIC)
    publish(client, 0, direct.OFFSETS_MIN, 5_000)
    client.upload_storage(TOPIC)
    chosen = options(broker.servers)
    assert not planned(client, chosen, 0, direct.OFFSETS_MIN - 1).segments
    large = planned(client, chosen)
    assert large.segments
    assert numbers(large, chosen) == list(range(direct.OFFSETS_MIN))


def test_only_the_columns_that_were_chosen_come(history: pydanube.BlockingClient, broker: Broker) -> None:
    chosen = options(broker.servers, directRead="always", columns="payload,offset")
    found = pa.Table.from_batches(fetching.read_ranges([planned(history, chosen)], chosen))
    assert found.column_names == ["payload", "offset"]
    assert found.num_rows == 2000


# -- stores that fail --------------------------------------------------------------------------------------------------


def test_segments_that_were_replaced_after_planning_are_located_again(
    history: pydanube.BlockingClient, broker: Broker
) -> None:
    chosen = options(broker.servers, directRead="always")
    wanted = planned(history, chosen)
    first, second = wanted.segments
    merged_since = replace(second, object=second.object.replace(".seg", "0.seg"), object_bytes=0)
    assert numbers(replace(wanted, segments=(first, merged_since)), chosen) == list(range(2000))


def test_a_store_that_cannot_be_reached_is_told_of_once_and_the_broker_serves(
    history: pydanube.BlockingClient, broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = replace(options(broker.servers, store="file:///nowhere/danube"), direct_read="always")
    wanted = planned(history, chosen)
    lenient = replace(chosen, direct_read="auto")
    assert numbers(wanted, lenient) == list(range(2000))
    assert numbers(wanted, lenient) == list(range(2000))
    told = capfd.readouterr().err
    assert told.count("spark.store_avoided") == 1
    assert "there is no directory /nowhere/danube on this machine" in told
    assert not Path("/nowhere").exists()


def test_always_fails_with_the_reason(history: pydanube.BlockingClient, broker: Broker) -> None:
    chosen = options(broker.servers, directRead="always", store="file:///nowhere/danube")
    with pytest.raises(Unavailable, match=r"directRead=always: .*offsets 0\.\.1700.* there is no directory /nowhere"):
        numbers(planned(history, chosen), chosen)


def test_a_store_without_the_objects_is_given_up(
    history: pydanube.BlockingClient, broker: Broker, tmp_path: Path
) -> None:
    other = tmp_path / "another"
    other.mkdir()
    chosen = options(broker.servers, directRead="always", store=other.as_uri())
    wanted = planned(history, chosen)
    assert numbers(wanted, replace(chosen, direct_read="auto")) == list(range(2000))
    with pytest.raises(NotFound, match=r"directRead=always: .* object segments/.* is not in"):
        numbers(wanted, chosen)
    assert list(other.iterdir()) == []


def test_a_damaged_object_is_an_error_or_the_brokers_business(
    history: pydanube.BlockingClient, broker: Broker, tmp_path: Path
) -> None:
    """The copy that the task reads is damaged, the broker's copy is not."""
    copy = tmp_path / "copy"
    shutil.copytree(broker.directory / "objects", copy)
    for path in copy.rglob("*.seg"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
    chosen = options(broker.servers, directRead="always", store=copy.as_uri())
    wanted = planned(history, chosen)
    with pytest.raises(Corrupt, match=r"directRead=always: .* does not match its checksum"):
        numbers(wanted, chosen)
    assert numbers(wanted, replace(chosen, direct_read="auto")) == list(range(2000))


def test_a_store_that_fails_in_the_middle_is_carried_on_by_the_broker(
    history: pydanube.BlockingClient, broker: Broker, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.directory / "objects", copy)
    chosen = options(broker.servers, directRead="always", store=copy.as_uri())
    wanted = planned(history, chosen)
    (copy / wanted.segments[1].object).unlink()
    assert numbers(wanted, replace(chosen, direct_read="auto")) == list(range(2000))


def test_credentials_come_from_the_options_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as server:
        settings, url = s3_settings(server.port), f"s3://{S3_BUCKET}/danube"
        with (
            broker_thread(tmp_path / "data", storage_url=url, storage_options=settings) as servers,
            pydanube.connect_blocking(servers) as client,
        ):
            client.create_topic(TOPIC)
            publish(client, 0, 1000)
            client.upload_storage(TOPIC)
            given = {f"store.{name}": value for name, value in settings.items()}
            chosen = options(servers, directRead="always", **given)
            wanted = planned(client, chosen)
            assert wanted.store == url
            assert settings["secret_access_key"] not in repr(wanted)
            assert numbers(wanted, chosen) == list(range(1000))

            wrong = options(servers, directRead="always", **{**given, "store.secret_access_key": "not-this-one"})
            with pytest.raises(Refused, match="directRead=always") as refused:
                numbers(wanted, wrong)
            assert "not-this-one" not in str(refused.value)
            assert numbers(wanted, replace(wrong, direct_read="auto")) == list(range(1000))

            monkeypatch.setenv("AWS_ACCESS_KEY_ID", given.pop("store.access_key_id"))
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given.pop("store.secret_access_key"))
            assert numbers(wanted, options(servers, directRead="always", **given)) == list(range(1000))


# -- what is gone ------------------------------------------------------------------------------------------------------


def test_what_retention_removed_is_reported_or_passed_with_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        broker_thread(tmp_path, topics_lifetimes_interval_s=1) as url,
        pydanube.connect_blocking(url) as client,
    ):
        client.create_topic(TOPIC)
        publish(client, 0, 1000)
        chosen = options(url, directRead="never")
        wanted = planned(client, chosen)
        client.create_subscription(TOPIC, "keeper", start=600)
        client.set_policies(TOPIC, retention_bytes=0)
        until(lambda: client.partitions(TOPIC)[0].start_offset == 600, "retention has run")
        with pytest.raises(Refused, match=r"offsets 0\.\.600 \(600\): retention or truncation removed them") as report:
            numbers(wanted, chosen)
        assert "failOnDataLoss=false" in str(report.value)
        assert numbers(wanted, replace(chosen, fail_on_data_loss=False)) == list(range(600, 1000))
        assert "spark.messages_lost" in capfd.readouterr().err


def test_a_log_that_is_shorter_than_planned_is_reported(history: pydanube.BlockingClient, broker: Broker) -> None:
    chosen = options(broker.servers, directRead="never")
    wanted = replace(planned(history, chosen, 1500), end=2100)
    with pytest.raises(Refused, match=r"offsets 2000\.\.2100 \(100\): the partition ends at 2000 now"):
        numbers(wanted, chosen)
    assert numbers(wanted, replace(chosen, fail_on_data_loss=False)) == list(range(1500, 2000))
    behind = replace(wanted, start=2050)
    with pytest.raises(Refused, match=r"offsets 2050\.\.2100 \(50\)"):
        numbers(behind, chosen)


def test_another_topic_of_the_same_name_is_not_mistaken_for_the_one_that_was_planned(
    history: pydanube.BlockingClient, broker: Broker
) -> None:
    chosen = options(broker.servers, directRead="never")
    wanted = planned(history, chosen)
    history.delete_topic(TOPIC)
    with pytest.raises(Refused, match=r"offsets 0\.\.2000 .*topic /default/orders does not exist"):
        numbers(wanted, chosen)
    history.create_topic(TOPIC)
    publish(history, 0, 2000, 500)
    with pytest.raises(Refused, match="was deleted and made anew since"):
        numbers(wanted, chosen)


def test_a_topic_that_is_made_anew_in_the_middle_of_a_task_is_lost_from_there_on(
    client: pydanube.BlockingClient, broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = b"old" * 20_000, b"new" * 20_000
    publish_payloads(client, [old] * 200)
    chosen = options(broker.servers, directRead="never", failOnDataLoss="false")
    wanted = planned(client, chosen)
    fetch, fetches = Connection.fetch, count(1)

    def remake() -> None:
        client.delete_topic(TOPIC)
        publish_payloads(client, [new] * 200)

    async def remade_before_the_third(connection: Connection, request: requests.Fetch) -> FetchAnswer:
        if next(fetches) == 3:
            await asyncio.to_thread(remake)
        return await fetch(connection, request)

    monkeypatch.setattr(Connection, "fetch", remade_before_the_third)
    read = [
        payload for batch in fetching.read_ranges([wanted], chosen) for payload in batch.column("payload").to_pylist()
    ]
    assert 0 < len(read) < 200 and set(read) == {old}
    assert f"start={len(read)} end=200" in capfd.readouterr().err


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_topic_that_is_gone_with_its_objects_is_a_loss_like_any_other(
    history: pydanube.BlockingClient, broker: Broker, made_anew: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = options(broker.servers, directRead="always")
    wanted = planned(history, chosen)
    history.delete_topic(TOPIC)
    if made_anew:
        publish(history, 0, 2000)
    for path in (broker.directory / "objects").rglob("*.seg"):
        path.unlink()
    with pytest.raises(Refused, match=r"offsets 0\.\.1700 \(1700\): topic .* (does not exist|was deleted)"):
        numbers(wanted, chosen)
    assert numbers(wanted, replace(chosen, fail_on_data_loss=False)) == []
    assert "spark.messages_lost" in capfd.readouterr().err


def test_a_topic_that_is_gone_when_segments_are_located_leaves_the_other_topics_theirs(
    history: pydanube.BlockingClient, broker: Broker
) -> None:
    other = "/default/returns"
    publish(history, 0, 1000, topic=other)
    history.upload_storage(other)
    chosen = options(broker.servers, directRead="always")
    ranges = [OffsetRange(name, history.describe_topic(name).topic_id, 0, 0, 1000) for name in (TOPIC, other)]
    history.delete_topic(TOPIC)
    gone, there = direct.locate_segments(ranges, chosen, history)
    assert (len(gone.segments), len(there.segments)) == (0, 1)
    with pytest.raises(Refused, match="1000 messages of 1 partition cannot be read any more"):
        numbers(gone, chosen)


# -- keys --------------------------------------------------------------------------------------------------------------


KEYS = [None, "a%b", "a_b", "a\\b", "axb", "line\nbreak", "user-1", "user-12", "ü"]
ADMITTED = {
    '["*"]': KEYS[1:],
    "user-?": ["user-1"],
    "user-*": ["user-1", "user-12"],
    "a%b": ["a%b"],
    "a_b": ["a_b"],
    "a\\b": ["a\\b"],
    "a?b": ["a%b", "a_b", "a\\b", "axb"],
    "line*break": ["line\nbreak"],
    "?": ["ü"],
    '["user-1", "ü"]': ["user-1", "ü"],
    "nobody": [],
}


def test_a_key_filter_leaves_the_keys_that_match(client: pydanube.BlockingClient, broker: Broker) -> None:
    with client.producer(TOPIC) as producer:
        producer.send_many([b"x"] * len(KEYS), keys=KEYS)
    for filters, expected in ADMITTED.items():
        for columns in ("key,offset", "offset"):
            chosen = options(broker.servers, keyFilter=filters, columns=columns)
            rows = [
                row for batch in fetching.read_ranges([planned(client, chosen)], chosen) for row in batch.to_pylist()
            ]
            assert [KEYS[row["offset"]] for row in rows] == expected
            assert all(set(row) == set(columns.split(",")) for row in rows)


def test_what_was_truncated_in_the_middle_of_a_batch_is_reported_and_not_read(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as url, pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 0, 300)
        chosen = options(url, directRead="never")
        wanted = planned(client, chosen)
        client.truncate_topic(TOPIC, 150)
        with pytest.raises(Refused, match=r"offsets 0\.\.150 \(150\): retention or truncation removed them"):
            numbers(wanted, chosen)
        assert numbers(wanted, replace(chosen, fail_on_data_loss=False)) == list(range(150, 300))


def test_a_task_finds_the_broker_by_its_http_url(tmp_path: Path) -> None:
    with _server_thread(tmp_path, {}) as server, pydanube.connect_blocking(server.url) as client:
        client.create_topic(TOPIC)
        publish(client, 0, 300)
        chosen = options(server.http_url, directRead="never")
        assert numbers(planned(client, chosen), chosen) == list(range(300))
