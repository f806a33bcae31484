"""Batches as they have been stored since version 1 of the format. These bytes never change; a change is a version 2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from batch_samples import NOW, Sample, samples
from hypothesis import given

from pydanube.codec.batch import Batch, Codec, encode

DOCUMENT = Path(__file__).parents[2] / "docs" / "batch.md"

PLAIN = bytes.fromhex(
    "44424154 01 00 0000 00000000 03000000"  # magic, version, codec, flags, columns, count
    "03000000 20000000 20000000 00000000"  # span, stored length, plain length, attribute entries
    "0000000000000000 ffffffffffffffff"  # producer id, first sequence
    "00000000 00000000 0000000000000000"  # producer epoch, schema version, schema id
    "00401e18240a0600 00401e18240a0600"  # publish times
    "0000000000000000 0000 000000000000"  # deliver-at, name length, zero
    "2981b025 30b520bc"  # checksums of body and header
    "0000000000000000 0000000000000000 00000000 00000000"  # no stamp yet
    "00000000 05000000 05000000 0b000000"  # payload offsets
    "68656c6c6f 64616e756265 0000000000"  # payloads
)

LOADED = bytes.fromhex(
    "44424154 01 00 0000 1f000000 03000000"
    "03000000 c0000000 c0000000 03000000"
    "0700000000000000 6400000000000000"
    "02000000 01000000 0300000000000000"
    "00401e18240a0600 02401e18240a0600"
    "00c7b11b240a0600 0800 000000000000"
    "95460c2c 73fd1f13"
    "e803000000000000 f4411e18240a0600 09000000 81ced7eb"  # stamped
    "00000000 03000000 03000000 08000000"  # payload offsets
    "05 00000000000000"  # key validity
    "00000000 02000000 02000000 04000000"  # key offsets
    "a9a00e96 00000000 d569d963 00000000"  # key hashes
    "00401e18240a0600 01401e18240a0600 02401e18240a0600"  # publish times
    "00000000 02000000 02000000 03000000"  # attribute lists
    "00000000 01000000 03000000 05000000"  # attribute key offsets
    "00000000 01000000 01000000 02000000"  # attribute value offsets
    "0000000000000000 0000000000000000 00c7b11b240a0600"  # deliver-at
    "6f72646572732d31"  # producer name
    "6f6e65 7468726565"  # payloads
    "6b31 c3bc 00000000"  # keys
    "61 6263 c3a9 000000"  # attribute keys
    "31 33 000000000000"  # attribute values
)

DERIVED = bytes.fromhex(
    "44424154 01 00 0100 3f000000 02000000"  # flag and offset column; two rows
    "03000000 b0000000 b0000000 03000000"  # of a span of three
    "0700000000000000 6400000000000000"
    "02000000 01000000 0300000000000000"
    "00401e18240a0600 02401e18240a0600"
    "00c7b11b240a0600 0800 000000000000"
    "545345b3 684f1daa"
    "e803000000000000 f4411e18240a0600 09000000 81ced7eb"  # the stamp it was copied from
    "00000000 03000000 08000000 00000000"
    "03 00000000000000"
    "00000000 02000000 04000000 00000000"
    "a9a00e96 d569d963"
    "00401e18240a0600 02401e18240a0600"
    "00000000 02000000 03000000 00000000"
    "00000000 01000000 03000000 05000000"
    "00000000 01000000 01000000 02000000"
    "0000000000000000 00c7b11b240a0600"
    "00000000 02000000"  # offset deltas
    "6f72646572732d31"
    "6f6e65 7468726565"
    "6b31 c3bc 00000000"
    "61 6263 c3a9 000000"
    "31 33 000000000000"
)

PACKED = {
    Codec.LZ4: bytes.fromhex(
        "44424154 01 01 0000 00000000 02000000"
        "02000000 21000000 a0000000 00000000"
        "0000000000000000 ffffffffffffffff"
        "00000000 00000000 0000000000000000"
        "00401e18240a0600 00401e18240a0600"
        "0000000000000000 0000 000000000000"
        "126c3db4 75434dc0"
        "0000000000000000 0000000000000000 00000000 00000000"
        "00000000 46000000 8c000000 00000000"
        "7f64616e7562652007007150 2000000000"
    ),
    Codec.ZSTD: bytes.fromhex(
        "44424154 01 02 0000 00000000 02000000"
        "02000000 2b000000 a0000000 00000000"
        "0000000000000000 ffffffffffffffff"
        "00000000 00000000 0000000000000000"
        "00401e18240a0600 00401e18240a0600"
        "0000000000000000 0000 000000000000"
        "0cbe4941 721a7912"
        "0000000000000000 0000000000000000 00000000 00000000"
        "00000000 46000000 8c000000 00000000"
        "28b52ffd20909500005864616e7562652000000000010002 51c508"
    ),
}


def test_a_plain_batch() -> None:
    assert encode([b"hello", b"", b"danube"], publish_times=NOW) == PLAIN
    assert Batch.open(PLAIN).payloads == [b"hello", b"", b"danube"]


def test_a_batch_with_everything() -> None:
    encoded = encode(
        [b"one", b"", b"three"],
        keys=["k1", None, "ü"],
        attributes=[{"a": "1", "bc": ""}, None, {"é": "3"}],
        publish_times=[NOW, NOW + 1, NOW + 2],
        deliver_at=[0, 0, NOW + 60_000_000],
        producer_name="orders-1",
        producer_id=7,
        producer_epoch=2,
        first_sequence=100,
        schema_id=3,
        schema_version=1,
    )
    Batch.open(encoded).stamp(1000, NOW + 500, 9)
    assert encoded == LOADED
    batch = Batch.open(LOADED, stamped=True)
    assert batch.payloads == [b"one", b"", b"three"]
    assert batch.keys == ["k1", None, "ü"]
    assert batch.attributes == [{"a": "1", "bc": ""}, {}, {"é": "3"}]
    assert batch.offsets.tolist() == [1000, 1001, 1002]


def test_a_derived_batch() -> None:
    assert bytes(Batch.open(LOADED, stamped=True).select([True, False, True]).view) == DERIVED
    assert Batch.open(DERIVED, stamped=True).offsets.tolist() == [1000, 1002]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_stays_readable(codec: Codec) -> None:
    # What is written may change with the library; what was written must be read for ever.
    batch = Batch.open(PACKED[codec])
    assert batch.header.codec is codec
    assert batch.payloads == [b"danube " * 10] * 2


# -- docs/batch.md ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """The names that the document's program defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    return names


def test_the_document_draws_the_bytes_of_a_batch() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    drawn = re.findall(r"^ *\d+  ((?:[0-9a-f]{2,} ?)+)(?: .*)?$", text, re.MULTILINE)
    assert bytes.fromhex(" ".join(drawn)) == LOADED


@given(sample=samples(codecs=(Codec.NONE,)))
def test_the_reader_in_the_document_reads_what_is_written(documented: dict[str, Any], sample: Sample) -> None:
    encoded = sample.encode()
    Batch.open(encoded).stamp(30, NOW, 1)
    assert documented["read_batch"](encoded) == [
        {
            "offset": 30 + row,
            "payload": payload,
            "key": sample.keys[row],
            "attributes": sample.attributes[row],
            "publish_time": sample.publish_times[row],
            "append_time": NOW,
            "deliver_at": sample.deliver_at[row],
            "producer": sample.rest["producer_name"],
        }
        for row, payload in enumerate(sample.payloads)
    ]


def test_the_reader_in_the_document_reads_selections(documented: dict[str, Any]) -> None:
    assert [message["offset"] for message in documented["read_batch"](DERIVED)] == [1000, 1002]
