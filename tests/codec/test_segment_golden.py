"""A segment as it has been stored since version 1 of the format. These bytes never change; a change is a version 2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from batch_samples import NOW
from hypothesis import given
from hypothesis import strategies as st
from segment_samples import SectionSample, built, footer_of, read_whole, section_samples

from pydanube.codec.batch import Batch, encode, stamp
from pydanube.codec.segment import SegmentBuilder
from pydanube.model.ledgers import ProducerEntry

DOCUMENT = Path(__file__).parents[2] / "docs" / "segments.md"

GOLDEN = bytes.fromhex(
    "44534547 01 00 0000 e8431e18240a0600"  # magic, version, zero, flags, created at
    + "00" * 44
    + "26300d0b"  # checksum of the header
    "44424154 01 00 0000 00000000 02000000 02000000 20000000 20000000 00000000"  # two messages
    "0700000000000000 0000000000000000 02000000 00000000 0000000000000000"
    "00401e18240a0600 00401e18240a0600 0000000000000000 0000 000000000000 85ff3090 93d0e23a"
    "e803000000000000 f4411e18240a0600 09000000 81ced7eb"  # offset 1000
    "00000000 05000000 0b000000 00000000 68656c6c6f 64616e756265 0000000000" + "00" * 32 +  # and zeros to 64
    "44424154 01 00 0000 00000000 01000000 01000000 10000000 10000000 00000000"  # one message, with a schema
    "0700000000000000 0200000000000000 02000000 01000000 0300000000000000"
    "01401e18240a0600 01401e18240a0600 0000000000000000 0000 000000000000 9b5e3e49 1fde4653"
    "ea03000000000000 84431e18240a0600 09000000 f1b082e1"  # offset 1002
    "00000000 05000000 616761696e 000000" + "00" * 48 +  # and zeros to 64
    "94 01 a6346631643263 cf00060a24181e43e8 91"  # format, writer, created at, one section
    "dc0012 12 00 1f 09 cd03e8 cd03eb 40 cd01c0"  # ids, offsets 1000 to 1003, bytes 64 to 448
    "02 03"  # batches, messages
    "cf00060a24181e41f4 cf00060a24181e4384 cf00060a24181e4000 cf00060a24181e4001"  # append and publish times
    "92 920000 920301"  # schemas: none, and 3 version 1
    "91 95 07 02 03 cf00060a24181e4384 91 9300cd03e803"  # one producer
    "91 93cd03e8cf00060a24181e41f440"  # one entry in the index
    "cea7916dd2"  # checksum of the section
    "000000000000"
    "c001000000000000 7a000000 9be1f8d9 01000000 00000000 8002000000000000"  # footer of 122 bytes at 448; 640 in all
    "01 00 0000" + "00" * 20 + "44454e44 49aef2d9"  # version, flags, zeros, magic, checksum
)  # fmt: skip


def batches() -> list[bytearray]:
    rest: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2}
    first = encode([b"hello", b"danube"], publish_times=NOW, first_sequence=0, **rest)
    second = encode([b"again"], publish_times=NOW + 1, first_sequence=2, schema_id=3, schema_version=1, **rest)
    stamp(first, 1000, NOW + 500, 9)
    stamp(second, 1002, NOW + 900, 9)
    return [first, second]


def test_a_segment_has_the_bytes_it_had() -> None:
    builder = SegmentBuilder("4f1d2c", NOW + 1000)
    builder.begin(topic_id=18, partition=0, ledger_id=31, owner_epoch=9)
    for batch in batches():
        builder.add(memoryview(batch))
    builder.end([ProducerEntry(7, 2, 3, NOW + 900, [(0, 1000, 3)])])
    pieces, _ = builder.finish()
    assert b"".join(pieces).hex() == GOLDEN.hex()


def test_a_segment_is_read_as_it_was() -> None:
    [section] = footer_of(GOLDEN).sections
    assert (section.topic_id, section.partition, section.ledger_id, section.owner_epoch) == (18, 0, 31, 9)
    assert (section.first_offset, section.end_offset) == (1000, 1003)
    assert section.producers == [ProducerEntry(7, 2, 3, NOW + 900, [(0, 1000, 3)])]
    [found] = read_whole(GOLDEN)
    assert found == batches()
    assert [Batch.open(batch, stamped=True).payloads for batch in found] == [[b"hello", b"danube"], [b"again"]]


# -- docs/segments.md -------------------------------------------------------------------------------------------------


def test_the_document_draws_the_bytes_of_a_segment() -> None:
    """Each line says where it is; three dots stand for zeros up to the next."""
    drawn, dotted = b"", False
    text = DOCUMENT.read_text(encoding="utf-8").split("\n## Manifests\n")[0]
    for place, digits, zeros in re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2,} ?)+)(\.\.\.)?(?: .*)?$", text, re.MULTILINE):
        if dotted:
            drawn += bytes(int(place) - len(drawn))
        assert len(drawn) == int(place)
        drawn += bytes.fromhex(digits)
        dotted = bool(zeros)
    assert drawn.hex() == GOLDEN.hex()


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """The names that the document's reader defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        if "def read_segment" in block:
            exec(block, names)
    return names


def test_the_reader_in_the_document_reads_the_golden_segment(documented: dict[str, Any]) -> None:
    assert documented["read_segment"](GOLDEN) == [((18, 0, 1000), batches())]


@given(sections=st.lists(section_samples(), min_size=1, max_size=3), block_bytes=st.sampled_from([1, 500, 1 << 18]))
def test_the_reader_in_the_document_reads_what_is_written(
    documented: dict[str, Any], sections: list[SectionSample], block_bytes: int
) -> None:
    found = documented["read_segment"](built(sections, block_bytes))
    assert [batches for _, batches in found] == [section.batches for section in sections]
