"""`danube produce --schema` and `danube consume --decode` against a real broker."""

from __future__ import annotations

import base64
import json

import pytest
from commands import consumed

pytestmark = pytest.mark.process

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
AVRO_LINE = '{"id": 1, "price": "12.34", "at": "2026-01-31T12:00:00.5Z", "note": {"string": "ü"}}'
AVRO_DECODED = {"id": 1, "price": "12.34", "at": "2026-01-31T12:00:00.500000Z", "note": "ü"}
JSON = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
PROTO = 'syntax = "proto3"; message Order { int64 order_id = 1; repeated string tags = 2; }'
FORMATS = {
    "avro": (AVRO, AVRO_LINE, AVRO_DECODED, '{"id": "x", "price": "1", "at": 0}', "$.id"),
    "json": (JSON, '{ "id": 18446744073709551617000 }', {"id": 18446744073709551617000}, '{"id": "x"}', "$.id"),
    "protobuf": (
        PROTO,
        '{"orderId": 7, "tags": ["a"]}',
        {"order_id": "7", "tags": ["a"]},
        '{"order_id": "x"}',
        "order_id",
    ),
    "number": ("", "1.50", 1.5, "one", "number"),
}


def registered(danube, subject: str, kind: str, definition: str) -> dict:
    done = danube("schemas", "register", subject, "-", "--format", kind, "--json", stdin=definition)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", FORMATS)
def test_lines_of_json_are_encoded_and_decoded_again(danube, subject, topic, kind: str):
    definition, line, decoded, _, _ = FORMATS[kind]
    made = registered(danube, subject, kind, definition)
    told = danube("produce", topic, "--schema", subject, "--json", stdin=f"{line}\n\n{line}\n")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["schema"] == {"subject": subject, "version": 1}
    for message in consumed(danube, topic, "-e", "--decode"):
        assert (message["payload"], message["payload_encoding"], message["subject"]) == (decoded, "json", subject)
        assert (message["schema_id"], message["schema_version"]) == (made["schema_id"], 1)
    printed = danube("consume", topic, "-e", "--decode").stdout.splitlines()
    assert [json.loads(one) for one in printed] == [decoded, decoded]
    formatted = danube("consume", topic, "-e", "--decode", "-f", r"%o=%s\n").stdout.splitlines()
    assert formatted == [f"{offset}={text}" for offset, text in enumerate(printed)]
    plain = consumed(danube, topic, "-e")[0]
    assert plain["payload_encoding"] != "json"
    assert "subject" not in plain


@pytest.mark.parametrize("kind", FORMATS)
def test_a_line_that_does_not_fit_is_named_and_leaves_no_topic(danube, subject, topic, kind: str):
    definition, line, _, wrong, named = FORMATS[kind]
    registered(danube, subject, kind, definition)
    refused = danube("produce", topic, "--schema", f"{subject}:1", stdin=f"{line}\n\n{wrong}\n")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert refused.stderr.startswith(f"danube: line 3 does not fit version 1 of subject {subject!r}: ")
    assert named in refused.stderr
    assert topic not in danube("topics", "list").stdout


def test_decoded_messages_are_published_again_with_the_schema(danube, subject, topic):
    registered(danube, subject, "avro", AVRO)
    danube("produce", topic, "--schema", subject, "-k", "k", "-a", "a=1", "-m", AVRO_LINE)
    told = danube("consume", topic, "-e", "--json", "--decode").stdout
    without = danube("produce", f"{topic}-copy", "--json-lines", stdin=told)
    assert without.returncode == 1
    assert "--schema" in without.stderr
    copied = danube("produce", f"{topic}-copy", "--json-lines", "--schema", subject, stdin=f"\n{told}")
    assert copied.returncode == 0, copied.stderr
    first, second = consumed(danube, topic, "-e")[0], consumed(danube, f"{topic}-copy", "-e")[0]
    names = ("payload", "payload_encoding", "key", "attributes", "schema_id", "schema_version", "publish_time")
    assert [first[name] for name in names] == [second[name] for name in names]


def test_payloads_are_decoded_with_the_version_they_were_written_with(danube, subject, topic):
    second = AVRO.replace(
        '"long"}, {"name": "price"', '"long"}, {"name": "size", "type": "int", "default": 3}, {"name": "price"'
    )
    registered(danube, subject, "avro", AVRO)
    danube("produce", topic, "--schema", subject, "-m", AVRO_LINE)
    assert registered(danube, subject, "avro", second)["version"] == 2
    danube("produce", topic, "--schema", subject, "-m", AVRO_LINE)
    danube("produce", topic, "--schema", f"{subject}:1", "-m", AVRO_LINE)
    read = consumed(danube, topic, "-e", "--decode")
    assert [(one["schema_version"], one["payload"].get("size")) for one in read] == [(1, None), (2, 3), (1, None)]


def test_messages_without_a_schema_stay_as_they_are(danube, subject, topic):
    danube("produce", topic, "-m", "plain text")
    registered(danube, subject, "json", JSON)
    danube("produce", topic, "--schema", subject, "-m", '{"id": 1}')
    first, second = consumed(danube, topic, "-e", "--decode")
    assert (first["payload"], first["payload_encoding"], first["subject"]) == ("plain text", "utf-8", None)
    assert second["payload"] == {"id": 1}


def test_text_of_a_schema_is_published_and_printed_as_it_is(danube, subject, topic):
    registered(danube, subject, "string", "")
    told = danube("produce", topic, "--schema", subject, stdin="hello\n\nworld\n")
    assert told.returncode == 0, told.stderr
    assert danube("consume", topic, "-e", "--decode").stdout == "hello\n\nworld\n"
    assert [one["payload_encoding"] for one in consumed(danube, topic, "-e", "--decode")] == ["utf-8"] * 3


def test_a_payload_that_does_not_fit_its_schema_is_reported_and_printed_as_it_is(danube, subject, topic):
    registered(danube, subject, "json", JSON)
    danube("produce", topic, "--schema", subject, "-m", '{"id": 1}')
    danube("schemas", "bind", topic, subject, "--policy", "none")
    (message,) = consumed(danube, topic, "-e")
    line = json.dumps(message | {"payload": "{}"})
    assert message["schema_id"] > 0
    danube("topics", "create", f"{topic}-2")
    wrong = danube("produce", f"{topic}-2", "--json-lines", "--schema", subject, stdin=line)
    assert wrong.returncode == 1
    danube("schemas", "unbind", topic)
    danube("schemas", "delete", subject, "--yes")
    danube("schemas", "delete", subject, "--permanent", "--yes")
    done = danube("consume", topic, "-e", "--decode")
    assert (done.returncode, done.stdout) == (0, '{"id": 1}\n')
    assert done.stderr.startswith(f"offset 0 of partition 0 of {topic} stays as it is: ")


def test_a_tombstone_has_a_key_and_no_payload(danube, subject, topic):
    registered(danube, subject, "avro", AVRO)
    danube("topics", "create", topic)
    danube("schemas", "bind", topic, subject, "--tombstones")
    lines = f"a|{AVRO_LINE}\na|\n\n"
    told = danube("produce", topic, "--schema", subject, "-K", "|", stdin=lines)
    assert told.returncode == 0, told.stderr
    assert danube("produce", topic, "--schema", subject, "-k", "b", "-m", "").returncode == 0
    read = consumed(danube, topic, "-e", "--decode")
    assert [(one["key"], one["payload"]) for one in read] == [("a", AVRO_DECODED), ("a", ""), ("b", "")]
    danube("schemas", "bind", topic, subject)
    refused = danube("produce", topic, "--schema", subject, "-k", "b", "-m", "")
    assert refused.returncode == 1
    assert "takes no tombstones" in refused.stderr


def test_an_empty_protobuf_message_is_no_tombstone_where_there_are_none(danube, subject, topic):
    registered(danube, subject, "protobuf", PROTO)
    assert danube("produce", topic, "--schema", subject, "-k", "a", stdin="{}\n").returncode == 0
    [record] = consumed(danube, topic, "-e", "--decode")
    assert (record["payload"], record["payload_encoding"]) == ({}, "json")
    danube("schemas", "bind", topic, subject, "--tombstones")
    assert consumed(danube, topic, "-e", "--decode")[0]["payload"] == ""


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_payloads_of_a_framed_topic_have_the_prefix_of_confluent(danube, subject, topic, kind: str):
    definition, line, decoded, _, _ = FORMATS[kind]
    made = registered(danube, subject, kind, definition)
    danube("topics", "create", topic)
    danube("schemas", "bind", topic, subject, "--framing", "confluent")
    told = danube("produce", topic, "--schema", subject, "-m", line)
    assert told.returncode == 0, told.stderr
    raw = danube("consume", topic, "-e", "--json").stdout
    payload = json.loads(raw)["payload"]
    data = base64.b64decode(payload) if json.loads(raw)["payload_encoding"] == "base64" else payload.encode()
    assert data[:5] == b"\0" + made["global_id"].to_bytes(4)
    (message,) = consumed(danube, topic, "-e", "--decode")
    assert (message["payload"], message["subject"]) == (decoded, subject)


def test_a_pinned_topic_is_written_with_that_version(danube, subject, topic):
    registered(danube, subject, "json", JSON)
    registered(danube, subject, "json", JSON.replace('"required": ["id"]', '"required": []'))
    danube("topics", "create", topic)
    danube("schemas", "bind", topic, subject, "--version", "1")
    told = danube("produce", topic, "--schema", subject, "--json", "-m", '{"id": 1}')
    assert json.loads(told.stdout)["schema"]["version"] == 1
    other = danube("produce", topic, "--schema", f"{subject}:2", "-m", '{"id": 1}')
    assert other.returncode == 1
    assert "not version 2" in other.stderr


def test_what_the_broker_does_not_take_is_named(danube, subject, topic):
    registered(danube, subject, "json", JSON)
    registered(danube, f"{subject}-2", "json", JSON)
    danube("produce", topic, "--schema", subject, "-m", '{"id": 1}')
    other = danube("produce", topic, "--schema", f"{subject}-2", "-m", '{"id": 1}')
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert f"{subject}-2" in other.stderr
    missing = danube("produce", topic, "--schema", f"{subject}:9", "-m", '{"id": 1}')
    assert missing.returncode == 1
    assert "9" in missing.stderr
    assert danube("produce", topic, "--schema", "no such", "-m", "1").returncode == 2
    assert danube("consume", topic, "-e", "--decode", "--raw").returncode == 2
