"""The driver's side of a stream against a real broker, asked as Spark asks, without the JVM in between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from spark_broker import TOPIC, Broker, restore_into, until

from pydanube import BlockingClient, Invalid, NotFound, Refused, Unavailable, connect_blocking
from pydanube.runtime.clock import ManualClock
from pydanube.spark.options import ReadOptions
from pydanube.spark.reading.broker_queries import BrokerQueries
from pydanube.spark.reading.planning import DanubePartition
from pydanube.spark.reading.stream_driver import StreamDriver, attempt_seconds
from pydanube.spark.reading.stream_reader import DanubeStreamReader
from pydanube.testing import broker_thread

Json = dict[str, Any]


class Query:
    """Calls a reader as Spark does, in the same order. Its log survives it, as a checkpoint does."""

    def __init__(self, url: str, log: list[str] | None = None, **options: str) -> None:
        self.options = {"servers": url, **({} if "assign" in options else {"topic": TOPIC}), **options}
        self.reader = DanubeStreamReader(ReadOptions.parse(self.options, "stream"))
        self.log = [] if log is None else log
        """The end of every batch, as Spark writes it down before it is read."""

    @property
    def _start(self) -> str:
        return self.log[-1] if self.log else json.dumps(self.reader.initialOffset())

    def trigger(self) -> list[DanubePartition]:
        """Run one micro-batch if there is anything new; return its tasks."""
        start = self._start
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
        if end == start:
            return []
        if len(self.log) > 1:
            self.reader.commit(json.loads(self.log[-1]))
        self.log.append(end)
        return self.planned(start, end)

    def replay(self) -> list[DanubePartition]:
        """Plan the last batch again, as after a crash in the middle of it."""
        start = self.log[-2] if len(self.log) > 1 else json.dumps(self.reader.initialOffset())
        return self.planned(start, self.log[-1])

    def planned(self, start: str, end: str) -> list[DanubePartition]:
        found = self.reader.partitions(json.loads(start), json.loads(end))
        assert all(isinstance(one, DanubePartition) for one in found)
        return list(found)  # type: ignore[arg-type]

    def wait_for(self, count: int) -> list[DanubePartition]:
        """Run micro-batches until `count` messages were planned."""
        found: list[DanubePartition] = []
        until(
            lambda: bool(found.extend(self.trigger()) or sum(one.size for one in found) >= count), f"{count} messages"
        )
        return found

    def again(self) -> Query:
        """Return a new run of the same query, from its checkpoint."""
        return Query(self.options["servers"], self.log, **{k: v for k, v in self.options.items() if k != "servers"})

    def settle(self) -> None:
        progress = self.reader._driver._progress
        assert progress is not None
        progress.wait_until_moved()


@contextmanager
def query(url: str, **options: str) -> Iterator[Query]:
    made = Query(url, **options)
    try:
        yield made
    finally:
        made.reader.stop()


def publish(client: BlockingClient, count: int, partition: int = 0, topic: str = TOPIC) -> None:
    with client.producer(topic, partition_by=partition) as producer:
        producer.send_many([b"%d" % number for number in range(count)])


def spans(tasks: list[DanubePartition], topic: str = TOPIC) -> list[tuple[int, int, int]]:
    """(partition, start, end), in order."""
    found = [(one.partition, one.start, one.end) for task in tasks for one in task.ranges if one.topic == topic]
    return sorted(found)


def positions(client: BlockingClient, name: str = "spark", topic: str = TOPIC) -> list[int]:
    return [one.position for one in client.describe_subscription(topic, name).partitions]


# -- where it begins ---------------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 5)
    with query(broker.url) as late, query(broker.url, startingOffsets="earliest") as early:
        assert late.trigger() == []
        assert spans(early.trigger()) == [(0, 0, 5)]
        publish(client, 3, partition=1)
        assert spans(late.wait_for(3)) == spans(early.wait_for(3)) == [(1, 0, 3)]
        assert late.trigger() == []


@pytest.mark.parametrize("options", [{}, {"subscription": "spark"}], ids=["checkpoint", "subscription"])
def test_a_crash_in_the_first_batch_neither_loses_nor_repeats(
    broker: Broker, client: BlockingClient, options: dict[str, str]
) -> None:
    client.create_topic(TOPIC)
    publish(client, 5)
    with query(broker.url, startingOffsets="-2", **options) as first:
        assert spans(first.trigger()) == [(0, 3, 5)]
    publish(client, 5)
    second = first.again()
    assert spans(second.replay()) == [(0, 3, 5)], "what Spark had written down counts, wherever the end is by now"
    assert spans(second.wait_for(5)) == [(0, 5, 10)]
    second.reader.stop()


def test_a_query_whose_checkpoint_is_gone_begins_where_its_subscription_is(
    broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 5)
    with query(broker.url, subscription="spark") as first:
        assert first.trigger() == []
        assert first.trigger() == [], "the first micro-batch, of no messages, is done"
        first.settle()
    publish(client, 2)
    publish(client, 3, partition=1)
    with query(broker.url, subscription="spark") as second:
        assert spans(second.trigger()) == [(0, 5, 7), (1, 0, 3)], "it was created at the end of that time"
    with query(broker.url) as without:
        assert without.trigger() == []


def test_a_query_that_finishes_no_batch_leaves_no_subscription(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 5)
    with query(broker.url, startingOffsets="earliest", subscription="spark", maxOffsetsPerTrigger="3") as first:
        assert spans(first.trigger()) == [(0, 0, 3)]
    assert client.list_subscriptions(TOPIC) == [], "it failed in its first batch, or was never started"
    second = first.again()
    assert spans(second.replay()) == [(0, 0, 3)]
    assert client.list_subscriptions(TOPIC) == [], "and once more"
    assert spans(second.trigger()) == [(0, 3, 5)]
    second.settle()
    assert positions(client) == [3, 0], "asking for the second batch means that the first is done"
    second.reader.stop()


def test_a_subscription_that_was_created_before_the_query_holds_its_first_batch(
    broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC)
    publish(client, 5)
    client.create_subscription(TOPIC, "spark", start="earliest", offsets={0: 2})
    with query(broker.url, subscription="spark") as stream:
        assert spans(stream.trigger()) == [(0, 2, 5)]
        assert positions(client) == [2]
        stream.trigger()
        stream.settle()
        assert positions(client) == [5]


def test_offsets_per_partition_and_times_are_where_it_begins(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        publish(client, 9, partition)
    starts = json.dumps({TOPIC: {"0": 4, "1": "-1", "2": "earliest"}})
    with query(broker.url, startingOffsets=starts, subscription="spark") as some:
        assert spans(some.trigger()) == [(0, 4, 9), (1, 8, 9), (2, 0, 9)]
        some.trigger()
        some.settle()
        assert positions(client) == [9, 9, 9]
    with query(broker.url, startingTimestamp="-1 hour") as all_of_it:
        assert [one[1:] for one in spans(all_of_it.trigger())] == [(0, 9)] * 3


def test_times_per_partition_are_where_it_begins(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        publish(client, 5, partition)
    with client.reader(TOPIC, partition=2, start="earliest") as reader:
        first = next(iter(reader)).append_time
    later = int(first.timestamp() * 1000) + 3_600_000
    times = json.dumps({TOPIC: {"0": 1, "1": later}})
    with query(broker.url, startingOffsetsByTimestamp=times) as some:
        assert spans(some.trigger()) == [(0, 0, 5)], "partition 2 has the default, which is latest"
        for partition in range(3):
            publish(client, 1, partition)
        assert spans(some.wait_for(3)) == [(0, 5, 6), (1, 5, 6), (2, 5, 6)]


def test_only_assigned_partitions_are_read(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        publish(client, 5, partition)
    with query(broker.url, assign=json.dumps({TOPIC: [0, 2]}), startingOffsets="2") as assigned:
        assert spans(assigned.trigger()) == [(0, 2, 5), (2, 2, 5)]
        client.grow_topic(TOPIC, 4)
        for partition in range(4):
            publish(client, 1, partition)
        assert spans(assigned.wait_for(2)) == [(0, 5, 6), (2, 5, 6)]
        assert assigned.trigger() == []
        newest = assigned.reader.reportLatestOffset()
        assert newest is not None and newest["topics"][TOPIC]["offsets"] == [6, 0, 6, 0]
    again = assigned.again()
    assert spans(again.replay()) == [(0, 5, 6), (2, 5, 6)]
    again.reader.stop()
    fewer = Query(broker.url, assigned.log, assign=json.dumps({TOPIC: [2]}))
    for call in (fewer.trigger, fewer.replay):
        with pytest.raises(
            Invalid, match=r"the checkpoint has read /default/orders\[0\], which the option assign does"
        ):
            call()
    fewer.reader.stop()
    with (
        query(broker.url, assign=json.dumps({TOPIC: [4]})) as more,
        pytest.raises(Invalid, match="option assign names partition 4 of /default/orders, which has 4, counted from 0"),
    ):
        more.trigger()
    named = json.dumps({TOPIC: {"1": 0}})
    with (
        query(broker.url, assign=json.dumps({TOPIC: [0]}), startingOffsets=named) as other,
        pytest.raises(Invalid, match="names partition 1 of /default/orders, which the option assign does not"),
    ):
        other.trigger()


# -- how far it goes ---------------------------------------------------------------------------------------------------


def test_limits_of_a_trigger(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 90)
    publish(client, 10, partition=1)
    with query(broker.url, startingOffsets="earliest", maxOffsetsPerTrigger="50") as limited:
        assert limited.reader.getDefaultReadLimit() == ReadMaxRows(50)
        assert spans(limited.trigger()) == [(0, 0, 45), (1, 0, 5)]
        assert spans(limited.trigger()) == [(0, 45, 90), (1, 5, 10)]
        assert limited.trigger() == []


def test_a_trigger_waits_for_enough_messages_or_for_its_delay(
    broker: Broker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 3)
    limits = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "10m"}
    with query(broker.url, startingOffsets="earliest", **limits) as patient:
        assert patient.reader.getDefaultReadLimit() == ReadMinRows(10)
        assert spans(patient.trigger()) == [(0, 0, 3)], "the first batch waits for nothing"
        publish(client, 5)
        publish(client, 4, partition=1)
        assert patient.trigger() == [], "nine messages are too few"
        publish(client, 1, partition=1)
        assert spans(patient.wait_for(10)) == [(0, 3, 8), (1, 0, 5)]
        publish(client, 2)
        assert patient.trigger() == []
        all_of_it = patient.reader.latestOffset(json.loads(patient.log[-1]), ReadAllAvailable())
        assert all_of_it["topics"][TOPIC]["offsets"] == [10, 5], "a trigger that wants everything gets everything"
        driver = patient.reader._driver
        monkeypatch.setattr(driver, "_last_batch_at", driver._last_batch_at - 600)
        assert spans(patient.wait_for(2)) == [(0, 8, 10)], "ten minutes have passed"
        publish(client, 1)
    now = patient.again()
    now.reader.prepareForTriggerAvailableNow()
    assert spans(now.trigger()) == [(0, 10, 11)], "a query that ends does not wait"
    now.reader.stop()


def test_a_minimum_and_a_maximum_of_a_trigger(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    publish(client, 25)
    limits = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10"}
    with query(broker.url, startingOffsets="earliest", **limits) as both:
        assert [sum(one.size for one in both.trigger()) for _ in range(3)] == [10, 10, 0]
        publish(client, 5)
        assert sum(one.size for one in both.wait_for(10)) == 10


def test_a_stream_goes_on_over_the_gap_of_a_restore(tmp_path: Path) -> None:
    """At least 60 million offsets are unused. They are not messages, batches or losses."""
    options = {"startingOffsets": "earliest", "subscription": "spark"}
    with broker_thread(tmp_path / "lost") as url, connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=3)
        publish(client, 40)
        publish(client, 10, partition=1)
        with query(url, maxOffsetsPerTrigger="45", **options) as before:
            assert sum(one.size for one in before.trigger()) == 45
            assert sum(one.size for one in before.trigger()) == 5
            log = before.log
    settings = restore_into(tmp_path / "restored", tmp_path / "lost")
    with broker_thread(tmp_path / "restored", **settings) as url, connect_blocking(url) as client:
        again = Query(url, log, maxOffsetsPerTrigger="15", **options)
        assert again.trigger() == [], "nothing is new"
        newest = again.reader.reportLatestOffset()
        assert newest is not None and newest["topics"][TOPIC]["offsets"] == [40, 10, 0], "and nothing waits"
        publish(client, 30)
        publish(client, 5, partition=2)
        sizes = [sum(one.size for one in again.trigger()) for _ in range(4)]
        assert sizes == [15, 15, 5, 0]
        again.settle()
        assert [one.lag for one in client.describe_subscription(TOPIC, "spark").partitions] == [0, 0, 0]
        again.reader.stop()
        ends = [one.end_offset for one in client.partitions(TOPIC)]
        assert all(end > 60_000_000 for end in ends)
        with query(url, maxBytesPerTrigger="100KiB", startingOffsets="-35", minPartitions="7") as last:
            planned = last.trigger()
            assert sum(one.size for one in planned) == 35 + 10 + 5
            assert len(planned) >= 7 and all(one.size for one in planned)
            assert last.trigger() == []
        with query(url, startingOffsets="earliest", maxOffsetsPerTrigger="30") as everything:
            assert [sum(one.size for one in everything.trigger()) for _ in range(4)] == [30, 30, 25, 0]


def test_bytes_of_a_trigger_are_about_as_many_as_allowed(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    with client.producer(TOPIC) as producer:
        producer.send_many([b"x" * 1_000] * 1_000)
    with query(broker.url, startingOffsets="earliest", maxBytesPerTrigger="100KiB") as limited:
        assert limited.reader.getDefaultReadLimit() == ReadMaxBytes(100 << 10)
        sizes = [sum(task.size for task in limited.trigger()) for _ in range(3)]
        assert all(80 <= size <= 110 for size in sizes), sizes
        rest = limited.reader.latestOffset(json.loads(limited.log[-1]), ReadAllAvailable())
        assert rest["topics"][TOPIC]["offsets"] == [1_000], "a trigger that wants everything gets everything"


def test_available_now_drains_exactly_what_existed_at_the_start(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 10)
    with query(broker.url, startingOffsets="earliest", maxOffsetsPerTrigger="4") as now:
        now.reader.prepareForTriggerAvailableNow()
        publish(client, 10)
        client.grow_topic(TOPIC, 3)
        publish(client, 10, partition=2)
        read = []
        while tasks := now.trigger():
            read += spans(tasks)
        assert read == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    then = now.again()
    then.reader.prepareForTriggerAvailableNow()
    read = []
    while tasks := then.trigger():
        read += spans(tasks)
    assert sum(end - start for _, start, end in read) == 20
    then.reader.stop()


def test_empty_topics_have_an_empty_first_batch_and_then_nothing(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    with query(broker.url, startingOffsets="earliest") as empty:
        assert empty.trigger() == [] and len(empty.log) == 1
        assert empty.trigger() == [] and len(empty.log) == 1
        publish(client, 1)
        assert spans(empty.wait_for(1)) == [(0, 0, 1)]


# -- what comes and goes -----------------------------------------------------------------------------------------------


def test_partitions_that_are_added_are_read_from_their_beginning(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=1)
    publish(client, 3)
    with query(broker.url, startingOffsets="latest", subscription="spark") as growing:
        assert growing.trigger() == []
        client.grow_topic(TOPIC, 3)
        publish(client, 4, partition=2)
        assert spans(growing.wait_for(4)) == [(2, 0, 4)]
        growing.trigger()
        growing.settle()
        assert positions(client) == [3, 0, 4]


def test_topics_that_come_to_match_a_pattern_are_read_from_their_beginning(
    broker: Broker, client: BlockingClient
) -> None:
    client.create_topic("/default/orders-eu")
    client.create_topic("/default/other")
    publish(client, 2, topic="/default/orders-eu")
    with query(broker.url, topic="/default/orders-*", subscription="spark") as pattern:
        assert pattern.trigger() == []
        client.create_topic("/default/orders-us")
        publish(client, 5, topic="/default/orders-us")
        publish(client, 5, topic="/default/other")
        assert spans(pattern.wait_for(5), "/default/orders-us") == [(0, 0, 5)]
        assert "/default/other" not in json.loads(pattern.log[-1])["topics"]
        assert positions(client, topic="/default/orders-us") == [0], "held for it before it is read"


def test_a_topic_that_does_not_exist_is_named(broker: Broker, client: BlockingClient) -> None:
    with query(broker.url) as nothing, pytest.raises(NotFound, match="/default/orders"):
        nothing.trigger()
    with query(broker.url, topic="/default/orders-*") as nobody:
        assert nobody.trigger() == [], "what does not match yet may come"


def test_a_topic_that_stores_nothing_is_refused(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, reliable=False)
    with query(broker.url) as fleeting, pytest.raises(Refused, match="/default/orders is not reliable"):
        fleeting.trigger()


def test_a_topic_that_is_deleted_under_a_stream_is_a_loss(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    publish(client, 5)
    with query(broker.url, startingOffsets="earliest") as strict:
        strict.trigger()
        lenient = Query(broker.url, list(strict.log), failOnDataLoss="false")
        client.delete_topic(TOPIC)
        with pytest.raises(Refused, match="offsets 5 and all behind it: the topic was deleted"):
            strict.trigger()
        assert lenient.trigger() == []
        client.create_topic(TOPIC)
        publish(client, 3)
        assert spans(lenient.wait_for(3)) == [(0, 0, 3)], "another topic, from its beginning"
        with pytest.raises(Refused, match="another was made under its name"):
            strict.trigger()
        lenient.reader.stop()


def test_a_topic_that_is_gone_when_available_now_starts_is_a_loss_to_whoever_read_it(
    broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC)
    publish(client, 5)
    with query(broker.url, startingOffsets="earliest") as first:
        first.trigger()
    client.delete_topic(TOPIC)
    with query(broker.url) as strict, query(broker.url, failOnDataLoss="false") as lenient, query(broker.url) as new:
        strict.log, lenient.log = first.log[:], first.log[:]
        for one in (strict, lenient, new):
            one.reader.prepareForTriggerAvailableNow()
        with pytest.raises(Refused, match="the topic was deleted"):
            strict.trigger()
        assert lenient.trigger() == []
        with pytest.raises(NotFound, match="/default/orders does not exist"):
            new.trigger()


def test_a_checkpoint_of_another_topic_is_a_loss_that_says_so(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    client.create_topic("/default/other")
    publish(client, 5)
    with query(broker.url, startingOffsets="earliest") as first:
        first.trigger()
    with query(broker.url, topic="/default/other") as second:
        second.log = first.log
        with pytest.raises(Refused, match=r"/default/orders.* or the option topic does not name it any more"):
            second.trigger()


def test_retention_that_overtakes_a_slow_stream_is_reported(tmp_path: Path) -> None:
    with broker_thread(tmp_path, topics_lifetimes_interval_s=1) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=2)
        publish(client, 100)
        publish(client, 10, partition=1)
        strict = Query(url, startingOffsets="earliest", maxOffsetsPerTrigger="55")
        assert spans(strict.trigger()) == [(0, 0, 50), (1, 0, 5)]
        lenient = Query(url, list(strict.log), failOnDataLoss="false")
        client.set_policies(TOPIC, retention_bytes=0)
        until(lambda: [one.start_offset for one in client.partitions(TOPIC)] == [100, 10], "retention has run")
        client.set_policies(TOPIC, retention_bytes=-1)
        publish(client, 7)
        with pytest.raises(Refused) as caught:
            strict.trigger()
        told = str(caught.value)
        assert "55 messages of 2 partitions cannot be read any more" in told
        assert "[0] offsets 50..100 (50): retention or truncation removed them, the partition begins at 100 now" in told
        assert "/default/orders[1] offsets 5..10 (5): retention or truncation removed them" in told
        assert "retention_s=604800" in told and "subscriptions: none" in told
        assert spans(lenient.trigger()) == [(0, 100, 107)]
        strict.reader.stop()
        lenient.reader.stop()


# -- the subscription --------------------------------------------------------------------------------------------------


def test_the_subscription_follows_what_was_finished_and_holds_retention(tmp_path: Path) -> None:
    with broker_thread(tmp_path, topics_lifetimes_interval_s=1) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=2)
        client.set_policies(TOPIC, retention_bytes=0)
        client.create_subscription(TOPIC, "spark", start="earliest")
        publish(client, 100)
        publish(client, 10, partition=1)
        with query(url, subscription="spark", maxOffsetsPerTrigger="55") as stream:
            stream.trigger()
            assert positions(client) == [0, 0], "the first batch is planned, and not done"
            stream.trigger()
            stream.settle()
            assert positions(client) == [50, 5], "asking for the next one means that it is"
            until(lambda: [one.start_offset for one in client.partitions(TOPIC)] == [50, 5], "what is done may go")
            assert spans(stream.replay()) == [(0, 50, 100), (1, 5, 10)], "what is not stays"
            assert stream.trigger() == []
            stream.settle()
            assert (
                positions(client) == [100, 10] and client.describe_subscription(TOPIC, "spark").partitions[0].lag == 0
            )


def test_a_subscription_that_somebody_else_moved_is_not_fought(
    broker: Broker, client: BlockingClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_topic(TOPIC)
    client.create_subscription(TOPIC, "spark", start="earliest")
    publish(client, 10)
    with query(broker.url, startingOffsets="earliest", subscription="spark", maxOffsetsPerTrigger="4") as stream:
        stream.trigger()
        client.seek(TOPIC, "spark", 2)
        stream.trigger()
        stream.settle()
        assert positions(client) == [4], "from where it was put, it goes on"
        client.seek(TOPIC, "spark", 9)
        stream.trigger()
        stream.settle()
        assert positions(client) == [9], "it is not moved back"
        assert "spark.subscription_moved_by_another" in capsys.readouterr().err
        assert stream.trigger() == []
        stream.settle()
        assert positions(client) == [10]


def test_a_subscription_with_consumers_is_refused(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    publish(client, 10)
    with (
        client.consumer(TOPIC, subscription="billing", name="till"),
        query(broker.url, subscription="billing") as stream,
        pytest.raises(Refused, match=r"'billing' on /default/orders has consumers attached \(till\)"),
    ):
        stream.trigger()


def test_a_stream_that_gets_a_subscription_later_has_it_where_it_is(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 10)
    with query(broker.url, startingOffsets="earliest") as before:
        before.trigger()
    after = Query(broker.url, before.log, subscription="spark")
    assert after.trigger() == []
    after.settle()
    assert positions(client) == [10, 0]
    after.reader.stop()


# -- brokers that go away ----------------------------------------------------------------------------------------------


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 3)
        stream = Query(url, startingOffsets="earliest", subscription="spark")
        assert spans(stream.trigger()) == [(0, 0, 3)]
    stream.reader._driver._connected().client._brokers.timeout = 0.3  # no need to wait longer to see it
    assert stream.trigger() == [], "nothing new, as far as anybody knows"
    port = int(url.rpartition(":")[2])
    with broker_thread(tmp_path, server_port=port) as url, connect_blocking(url) as client:
        publish(client, 2)
        assert spans(stream.wait_for(2)) == [(0, 3, 5)]
        stream.trigger()
        stream.settle()
        assert positions(client) == [5]
        stream.reader.stop()


def test_a_broker_that_lost_its_data_has_other_topics_though_their_names_and_ids_are_the_same(tmp_path: Path) -> None:
    with broker_thread(tmp_path / "old") as url, connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 5)
        before, known = client.cluster, client.describe_topic(TOPIC).topic_id
        strict = Query(url, startingOffsets="earliest", subscription="strict")
        lenient = Query(url, startingOffsets="earliest", subscription="lenient", failOnDataLoss="false")
        assert spans(strict.trigger()) == spans(lenient.trigger()) == [(0, 0, 5)]
        lenient.reader.stop()
    port = int(url.rpartition(":")[2])
    with broker_thread(tmp_path / "new", server_port=port) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 8)
        assert client.cluster != before and client.describe_topic(TOPIC).topic_id == known
        restarted = strict.again()
        for one in (strict, restarted):
            with pytest.raises(Refused, match=f"offsets 5 and all behind it: they were of cluster {before}"):
                one.trigger()
            with pytest.raises(Refused, match=f"they were of cluster {before}, and this is {client.cluster}"):
                one.replay()
            one.reader.stop()
        assert client.list_subscriptions(TOPIC) == [], "nothing was made there for what was read elsewhere"
        going_on = lenient.again()
        assert spans(going_on.wait_for(8)) == [(0, 0, 8)], "another topic, from its beginning"
        assert positions(client, "lenient") == [0]
        going_on.trigger()
        going_on.settle()
        assert positions(client, "lenient") == [8]
        going_on.reader.stop()


def test_a_broker_that_stays_away_ends_the_query_after_its_timeout(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC)
        stream = Query(url, timeout="0.5")
        stream.trigger()

    def ends() -> bool:
        try:
            assert stream.trigger() == []
        except Unavailable as error:
            return url.rpartition("/")[2] in error.message
        return False

    until(ends, "the query ends, and names the broker")
    stream.reader.stop()


@pytest.mark.parametrize("trigger", ["default", "availableNow"])
def test_a_broker_that_was_never_there_is_tried_for_one_timeout(trigger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[float] = []
    opening = BrokerQueries.open

    def counted(queries: BrokerQueries) -> BrokerQueries:
        attempts.append(queries.client._brokers.timeout)
        return opening(queries)

    monkeypatch.setattr(BrokerQueries, "open", counted)
    with query("127.0.0.1:1", timeout="1") as stream, pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        stream.reader.prepareForTriggerAvailableNow() if trigger == "availableNow" else stream.trigger()
    assert attempts == [1.0]


@pytest.mark.parametrize("timeout_s", [0.1, 2.0, 10.0, 15.0, 25.0, 120.0, 600.0])
@pytest.mark.parametrize("early", [0.8, 1.0])
def test_attempts_fill_the_timeout(timeout_s: float, early: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`early`: the share of its time after which an attempt gives up."""
    driver = StreamDriver(ReadOptions.parse({"topic": TOPIC, "timeout": str(timeout_s)}, "stream"))
    clock = ManualClock()
    monkeypatch.setattr(driver, "_clock", clock)

    def attempt() -> None:
        clock.advance(attempt_seconds(timeout_s) * early)
        raise Unavailable("nobody is there")

    begin = clock.monotonic()
    with pytest.raises(Unavailable, match="nobody is there"):
        driver._retry_until_timeout(attempt)
    spent = clock.monotonic() - begin
    assert 0.5 * timeout_s <= spent <= timeout_s + attempt_seconds(timeout_s) / 4 + 1e-6
    assert attempt_seconds(timeout_s) <= 10.0


# -- size --------------------------------------------------------------------------------------------------------------


def test_five_thousand_partitions_are_planned_in_a_moment(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=5_000)
    client.describe_topic(TOPIC)  # opens them, which is the broker's business and happens once
    publish(client, 3)
    publish(client, 4, partition=4_999)
    with query(broker.url, startingOffsets="earliest", subscription="spark") as stream:
        begin = time.process_time()
        tasks = stream.trigger()
        spent = time.process_time() - begin  # of broker and driver, which share this process; other load does not count
        assert spans(tasks) == [(0, 0, 3), (4_999, 0, 4)]
        assert spent < 5, f"{spent:.1f} s"
        begin = time.process_time()
        assert stream.trigger() == []
        assert time.process_time() - begin < 2
