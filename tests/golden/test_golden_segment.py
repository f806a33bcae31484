"""A segment object written by release 0.1 is read by every later release: its footer, its batches, by offset and time.

The object is checked in as it is. Running this file as a program writes it anew, which only a change of the format may
make necessary; the old object then stays, under its release's name. What the compressing libraries make of the same
bytes may change from one of their releases to the next, so nobody compares what is written with what is stored here.

    section 0    topic 5, partition 0, ledger 11, epoch 3: offsets 100 to 220, 40 batches in every codec, 2 producers
    section 1    topic 5, partition 1, ledger 12, epoch 3: offsets 0 to 3, one batch with every column
    section 2    topic 9, partition 0, ledger 21, epoch 1: offset 7, one empty payload
"""

import sys
from pathlib import Path

from crc32c import crc32c

from pydanube.codec.batch import Batch, Codec, encode, stamp
from pydanube.codec.segment import SegmentBuilder, check_header, decode_footer, read_trailer
from pydanube.model.ledgers import ProducerEntry

OBJECT = Path(__file__).with_name("segment-0.1.seg")
NOW = 1_700_000_000_000_000
PRODUCERS = [ProducerEntry(1, 4, 60, NOW + 38, [(0, 100, 60)]), ProducerEntry(2**64 - 1, 1, 9, NOW + 39, [(6, 217, 3)])]


def _varied():
    for number in range(40):
        rows = [b"%d " % row * 40 for row in range(number, number + 3)]
        batch = encode(rows, publish_times=NOW - number, keys=["k", "l", "m"], codec=Codec(number % 3))
        stamp(batch, 100 + 3 * number, NOW + number, 3)
        yield batch


def _loaded():
    batch = encode(
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
    stamp(batch, 0, NOW + 500, 3)
    yield batch


def _empty():
    batch = encode([b""], publish_times=NOW)
    stamp(batch, 7, NOW, 1)
    yield batch


def write() -> bytes:
    builder = SegmentBuilder("golden", NOW + 1_000_000, block_bytes=2048)
    for ids, batches, producers in (
        ((5, 0, 11, 3), _varied(), PRODUCERS),
        ((5, 1, 12, 3), _loaded(), []),
        ((9, 0, 21, 1), _empty(), []),
    ):
        builder.begin(*ids)
        for batch in batches:
            builder.add(memoryview(batch))
        builder.end(producers)
    return b"".join(builder.finish()[0])


def test_a_segment_of_release_0_1_is_read():
    content = memoryview(OBJECT.read_bytes())
    assert check_header(content) == NOW + 1_000_000
    trailer = read_trailer(content, len(content))
    footer = decode_footer(content[trailer.footer_start : trailer.footer_end], trailer)
    assert footer.writer == "golden"
    varied, loaded, empty = footer.sections
    assert [(one.first_offset, one.end_offset, one.messages) for one in footer.sections] == [
        (100, 220, 120),
        (0, 3, 3),
        (7, 8, 1),
    ]
    assert varied.producers == PRODUCERS
    assert loaded.schemas == [(3, 1)]
    assert (varied.publish_time_min, varied.publish_time_max) == (NOW - 39, NOW)
    for section in footer.sections:
        assert crc32c(content[section.start : section.end]) == section.crc

    batches = varied.split(content[varied.start : varied.end], varied.start)
    opened = [Batch.open(batch, stamped=True) for batch in batches]
    assert {batch.header.codec for batch in opened} == set(Codec)
    assert [batch.payloads[2] for batch in opened] == [b"%d " % (n + 2) * 40 for n in range(40)]
    [everything] = loaded.split(content[loaded.start : loaded.end], loaded.start)
    assert Batch.open(everything, stamped=True).attributes == [{"a": "1", "bc": ""}, {}, {"é": "3"}]
    [nothing] = empty.split(content[empty.start : empty.end], empty.start)
    assert Batch.open(nothing, stamped=True).payloads == [b""]


def test_its_index_finds_offsets_and_times():
    content = memoryview(OBJECT.read_bytes())
    trailer = read_trailer(content, len(content))
    section = decode_footer(content[trailer.footer_start : trailer.footer_end], trailer).sections[0]
    assert len(section.index) > 5
    for number in range(40):
        [block] = section.blocks(100 + 3 * number + 1, 100 + 3 * number + 2)
        found = [Batch.trust(batch) for batch in section.split(content[block.start : block.end], block.start)]
        assert [batch.append_time for batch in found if batch.base_offset == 100 + 3 * number] == [NOW + number]
        start, end = section.block_at_time(NOW + number)
        assert start <= section.blocks(100 + 3 * number, 101 + 3 * number)[0].start <= end


if __name__ == "__main__":
    OBJECT.write_bytes(write())
    print(f"{OBJECT.stat().st_size} bytes", file=sys.stderr)
