"""Options of the data source: their meaning, and errors for misspelt ones."""

from __future__ import annotations

import pickle

import pytest

from pydanube import Invalid
from pydanube.client.tables.read_types import COLUMNS
from pydanube.runtime.tls import ClientTls
from pydanube.spark.options import ReadOptions, WriteOptions
from pydanube.spark.reading.bounds import Bound, Bounds

TOPIC = {"topic": "/default/orders"}


def test_a_topic_is_enough() -> None:
    options = ReadOptions.parse(TOPIC)
    assert ReadOptions.parse({**TOPIC, "servers": "http://a,b:1"}).servers == "http://a:8650,b:1"
    assert (options.servers, options.topics, options.patterns) == ("danube://127.0.0.1:6655", ("/default/orders",), ())
    assert (options.columns, options.fail_on_data_loss, options.direct_read) == (COLUMNS, True, "auto")
    assert ReadOptions.parse({"path": "/default/orders"}) == options


def test_names_of_options_come_in_any_case_and_travel_to_executors() -> None:
    options = ReadOptions.parse({"TOPIC": "/default/orders", "maxoffsetspertrigger": "10", "MINPARTITIONS": "4"})
    assert (options.max_offsets, options.min_partitions) == (10, 4)
    assert pickle.loads(pickle.dumps(options)) == options


def test_topics_are_names_and_patterns_with_commas_between_them() -> None:
    options = ReadOptions.parse({"topic": "/default/a, /default/b,/default/c-*,/default/a"})
    assert (options.topics, options.patterns) == (("/default/a", "/default/b"), ("/default/c-*",))


def test_topics_subscriptions_and_offsets_have_dots_in_their_names() -> None:
    given = {
        "topic": "/shop.eu/orders.v1,/shop.eu/orders.*",
        "startingOffsets": '{"/shop.eu/orders.v1": {"0": 17}}',
        "subscription": "billing.v2",
    }
    options = ReadOptions.parse(given, "stream")
    assert (options.topics, options.patterns) == (("/shop.eu/orders.v1",), ("/shop.eu/orders.*",))
    assert options.start is not None
    assert options.start.bound_of("/shop.eu/orders.v1", 0) == Bound("offset", 17)
    assert options.subscription == "billing.v2"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option topic is missing"),
        ({"topic": ""}, "option topic is missing"),
        ({"topic": "orders"}, "topic 'orders' is not a full name"),
        ({"topic": "orders-*"}, "pattern 'orders-\\*' is not of the form"),
        ({**TOPIC, "path": "/default/b"}, "the topic is given twice"),
        ({**TOPIC, "topci": "x"}, "option 'topci' is unknown: did you mean 'topic'?"),
        ({**TOPIC, "startingoffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({**TOPIC, "kafka.security.protocol": "x"}, "option 'kafka.security.protocol' is unknown: known are servers,"),
        (
            {**TOPIC, "kafka.bootstrap.servers": "x"},
            "option 'kafka.bootstrap.servers' is Kafka's: here it is 'servers'",
        ),
        ({"subscribe": "orders"}, "option 'subscribe' is Kafka's: here it is 'topic'"),
        (
            {"subscribepattern": "/default/orders-.*"},
            "option 'subscribepattern' is Kafka's: here it is 'topic', with a glob such as /default/orders-\\*",
        ),
        ({**TOPIC, "queryid": "x"}, "option 'queryId' is not for reading"),
        ({**TOPIC, "servers": "ftp://x"}, "option servers: broker URL"),
        ({**TOPIC, "maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0': use a whole number"),
        ({**TOPIC, "maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger is 'many'"),
        ({**TOPIC, "maxBytesPerTrigger": "1 elephant"}, "option maxBytesPerTrigger is '1 elephant'"),
        ({**TOPIC, "minPartitions": "-2"}, "option minPartitions is '-2'"),
        ({**TOPIC, "failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe': use true or false"),
        ({**TOPIC, "columns": "offset,paylod"}, "names 'paylod', which no message has: did you mean 'payload'?"),
        ({**TOPIC, "columns": "offset,offset"}, "names 'offset' more than once"),
        ({**TOPIC, "columns": "attributes", "includeAttributes": "false"}, "drop one of the two"),
        ({**TOPIC, "keyFilter": "[1]"}, "option keyFilter says 1"),
        ({**TOPIC, "keyFilter": '["user-1"'}, "option keyFilter begins like JSON and cannot be read"),
        ({**TOPIC, "keyFilter": "[]"}, "option keyFilter is an empty list"),
        ({**TOPIC, "subscription": "a b"}, "option subscription: subscription 'a b' is not a name"),
        ({**TOPIC, "directRead": "sometimes"}, "option directRead is 'sometimes'"),
        ({**TOPIC, "store": "ftp://elsewhere/objects"}, "option store: no store has URLs that begin with 'ftp'"),
        ({**TOPIC, "timeout": "0"}, "option timeout is '0'"),
        ({**TOPIC, "startingOffsets": "yesterday"}, "option startingOffsets says 'yesterday', which is no offset"),
        ({**TOPIC, "startingOffsets": "1", "startingTimestamp": "-1 hour"}, "say the same thing twice"),
        (
            {**TOPIC, "startingTimestamp": "-10 parsecs"},
            "option startingTimestamp says '-10 parsecs', which is no time",
        ),
        ({**TOPIC, "startingTimestamp": "soon"}, "which is no time"),
        ({**TOPIC, "endingOffsets": "earliest"}, "option endingOffsets is earliest"),
        ({**TOPIC, "startingOffsets": '{"orders": 1}'}, "topic 'orders' is not a full name"),
        ({**TOPIC, "startingOffsets": '{"/default/orders": {"one": 1}}'}, "names partition 'one'"),
        (
            {**TOPIC, "startingOffsets": '{"/default/orders": {"0": -3}}'},
            r"use an offset, -1 \(latest\), -2 \(earliest",
        ),
        ({**TOPIC, "startingOffsets": '{"/default/orders": {"0": -1.0}}'}, "says -1.0, which is no offset"),
        ({**TOPIC, "startingOffsetsByTimestamp": "1769860800000"}, "says '1769860800000', which is no JSON: use JSON"),
        ({**TOPIC, "startingOffsetsByTimestamp": '{"/default/orders": {"0": -7}}'}, "says '-7', which is no time"),
        ({**TOPIC, "startingOffsetsByTimestamp": '{"/default/orders": true}'}, "says True, which is no time"),
        (
            {**TOPIC, "endingOffsetsByTimestamp": '{"/default/orders": 1', "endingTimestamp": "1"},
            "the same thing twice",
        ),
        ({**TOPIC, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "which is less"),
        ({**TOPIC, "maxTriggerDelay": "10m"}, "option maxTriggerDelay is for minOffsetsPerTrigger, which is missing"),
        ({**TOPIC, "minOffsetsPerTrigger": "1", "maxTriggerDelay": "10"}, "is '10': use a time such as 30s, 15m or 1h"),
        ({**TOPIC, "assign": '{"/default/orders": [0]}'}, "the topic is given twice: in the option assign and as"),
        ({"assign": "orders"}, "option assign says 'orders', which is no JSON: use JSON such as"),
        ({"assign": "{"}, "option assign begins like JSON and cannot be read"),
        ({"assign": "{}"}, "option assign names no topic"),
        ({"assign": '{"orders": [0]}'}, "topic 'orders' is not a full name"),
        ({"assign": '{"/default/orders": [true]}'}, r"option assign says \[True\] for /default/orders"),
        ({"assign": '{"/default/orders": []}'}, r"option assign says \[\] for /default/orders"),
        ({"assign": '{"/default/orders": [0]}', "subscription": "s"}, "assign and subscription exclude each other"),
        ({**TOPIC, "startingOffsets": '{"/default/orders": {"0": 1, "0": 2}}'}, "'0' is there twice"),
        ({**TOPIC, "startingOffsets": '{"/default/orders"'}, "begins like JSON and cannot be read"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, str], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        ReadOptions.parse(given)


@pytest.mark.parametrize("name", ["minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "subscription"])
def test_what_only_streams_have_is_refused_in_a_batch(name: str) -> None:
    assert ReadOptions.parse({**TOPIC, name: "1"}, "stream")
    with pytest.raises(Invalid, match=f"option {name} means nothing for a batch"):
        ReadOptions.parse({**TOPIC, name: "1"}, "batch")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "-1 hour"),
        ("endingOffsetsByTimestamp", '{"/default/orders": {"0": 5}}'),
    ],
)
def test_a_stream_has_no_end(name: str, value: str) -> None:
    assert ReadOptions.parse({**TOPIC, name: value}, "batch")
    with pytest.raises(Invalid, match=f"option {name} means nothing for a stream"):
        ReadOptions.parse({**TOPIC, name: value}, "stream")


def test_a_batch_cannot_start_at_the_end() -> None:
    assert ReadOptions.parse({**TOPIC, "startingOffsets": "latest"}, "stream").start
    with pytest.raises(Invalid, match="behind which a batch finds nothing"):
        ReadOptions.parse({**TOPIC, "startingOffsets": "latest"}, "batch")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("earliest")),
        ("latest", Bound("latest")),
        ("17", Bound("offset", 17)),
        ("-1000", Bound("back", 1000)),
    ],
)
def test_bounds_are_words_offsets_and_counts_back(text: str, bound: Bound) -> None:
    bounds = ReadOptions.parse({**TOPIC, "startingOffsets": text}).start
    assert bounds is not None and bounds.bound_of("/default/orders", 3) == bound


def test_json_says_it_for_topics_and_partitions_and_the_rest_has_the_default() -> None:
    text = '{"/default/a": {"0": 17, "1": "latest", "2": "-5"}, "/default/b": "earliest"}'
    bounds = Bounds.of_offsets(text, "startingOffsets", Bound("latest"))
    assert [str(bounds.bound_of("/default/a", partition)) for partition in range(4)] == ["17", "latest", "-5", "latest"]
    assert bounds.bound_of("/default/b", 9) == Bound("earliest")
    assert bounds.topics == ["/default/a", "/default/b"]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("2026-01-31T12:00:00Z", Bound("time", 1_769_860_800_000_000)),
        ("2026-01-31 12:00:00", Bound("time", 1_769_860_800_000_000)),
        ("2026-01-31T13:00:00+01:00", Bound("time", 1_769_860_800_000_000)),
        ("1769860800000", Bound("time", 1_769_860_800_000_000)),
        ("-10 minutes", Bound("ago", 600_000_000)),
        ("-2h", Bound("ago", 7_200_000_000)),
    ],
)
def test_times_are_absolute_or_so_long_ago(text: str, bound: Bound) -> None:
    start = ReadOptions.parse({**TOPIC, "startingTimestamp": text}).start
    assert start is not None and start.default == bound


def test_numbers_in_json_mean_what_they_mean_in_kafka() -> None:
    bounds = Bounds.of_offsets('{"/default/a": {"0": -1, "1": -2, "2": 7}}', "startingOffsets", Bound("latest"))
    assert [str(bounds.bound_of("/default/a", one)) for one in range(3)] == ["latest", "earliest", "7"]


def test_times_may_differ_by_partition_and_the_rest_has_the_default() -> None:
    text = '{"/default/a": {"0": 1769860800000, "1": "2026-01-31T12:00:00Z"}, "/default/b": "-1 hour"}'
    options = {"topic": "/default/a,/default/b", "startingOffsetsByTimestamp": text, "endingOffsetsByTimestamp": text}
    parsed = ReadOptions.parse(options, "batch")
    noon = Bound("time", 1_769_860_800_000_000)
    for bounds, default in ((parsed.start, Bound("earliest")), (parsed.end, Bound("latest"))):
        assert bounds is not None
        assert [bounds.bound_of("/default/a", one) for one in range(3)] == [noon, noon, default]
        assert bounds.bound_of("/default/b", 9) == Bound("ago", 3_600_000_000)


def test_assign_names_topics_and_partitions() -> None:
    options = ReadOptions.parse({"assign": '{"/default/a": [2, 0, 2], "/default/b": [1]}'})
    assert options.topics == ("/default/a", "/default/b")
    assert options.assigned == {"/default/a": (0, 2), "/default/b": (1,)}
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("90 s", 90), ("250ms", 0.25), ("1 hour", 3600)])
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    options = {**TOPIC, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert ReadOptions.parse(options).trigger_delay_s == seconds
    assert ReadOptions.parse({**TOPIC, "minOffsetsPerTrigger": "5"}).trigger_delay_s == 900


def test_columns_have_the_order_they_were_chosen_in() -> None:
    assert ReadOptions.parse({**TOPIC, "columns": "payload, OFFSET"}).columns == ("payload", "offset")
    assert "attributes" not in ReadOptions.parse({**TOPIC, "includeAttributes": "false"}).columns
    both = {**TOPIC, "columns": "payload", "includeAttributes": "true"}
    assert ReadOptions.parse(both).columns == ("payload", "attributes")


def test_key_filters_are_one_glob_or_several() -> None:
    assert ReadOptions.parse({**TOPIC, "keyFilter": "user-*"}).key_filters == ("user-*",)
    assert ReadOptions.parse({**TOPIC, "keyFilter": '["a,b", "c?"]'}).key_filters == ("a,b", "c?")
    assert ReadOptions.parse({**TOPIC, "keyFilter": "[x"}).key_filters == ("[x",)


def test_sizes_have_units() -> None:
    assert ReadOptions.parse({**TOPIC, "maxBytesPerTrigger": "64MiB"}).max_bytes == 64 << 20
    assert ReadOptions.parse({**TOPIC, "maxBytesPerTrigger": "1000"}).max_bytes == 1000


def test_credentials_of_the_store_go_to_executors_and_into_no_message() -> None:
    options = ReadOptions.parse({**TOPIC, "store": "s3://b", "store.secret_access_key": "hush", "store.region": "x"})
    assert dict(options.store_settings) == {"secret_access_key": "hush", "region": "x"}
    assert "hush" not in repr(options)


def test_options_of_writing_and_reading_are_not_mixed_up() -> None:
    assert WriteOptions.parse({"topic": "/default/orders", "checkpointLocation": "/x", "queryName": "q"}).topic
    with pytest.raises(Invalid, match="option 'startingOffsets' is not for writing"):
        WriteOptions.parse({"startingOffsets": "latest"})
    with pytest.raises(Invalid, match="queryId and batchId belong together"):
        WriteOptions.parse({"queryId": "x"})


def test_options_of_tls_reach_readers_and_writers_and_need_servers_with_tls() -> None:
    files = {"tls.cafile": "ca.pem", "tls.certfile": "c.pem", "tls.keyfile": "k.pem", "tls.insecureskipverify": "true"}
    given = {"servers": "danubes://broker:6655", "topic": "/default/orders", **files}
    for options in (ReadOptions.parse(given), WriteOptions.parse(given)):
        assert options.credentials.tls == ClientTls("ca.pem", "c.pem", "k.pem", insecure_skip_verify=True)
        assert options.servers == "danubes://broker:6655"
    with pytest.raises(Invalid, match="danubes://"):
        ReadOptions.parse({**given, "servers": "broker:6655"})
    with pytest.raises(Invalid, match=r"tls\.certFile and tls\.keyFile"):
        ReadOptions.parse({**given, "tls.keyfile": ""})
    assert ReadOptions.parse({"topic": "/default/orders"}).credentials.tls is None
