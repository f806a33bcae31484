"""What goes into a batch comes out of it, whatever it is."""

from __future__ import annotations

import subprocess
import sys
import zlib
from datetime import UTC, datetime

import numpy as np
import pytest
from batch_samples import NOW, Sample, assert_holds, loaded, samples
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.batch import HEADER_BYTES, Batch, BatchBuilder, BatchMessage, Codec, encode, read_header
from pydanube.codec.batch.assemble import EncodedRows, Origin, assemble
from pydanube.codec.batch.header import TIME_MAX, TIME_MIN
from pydanube.model.limits import BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX


@given(samples())
def test_everything_comes_back(sample: Sample) -> None:
    encoded = sample.encode()
    batch = Batch.open(encoded)
    assert_holds(batch, sample)
    assert_holds(Batch.trust(encoded), sample)
    for name in ("producer_id", "producer_epoch", "first_sequence", "schema_id", "schema_version"):
        assert getattr(batch.header, name) == sample.rest[name]
    assert batch.header.codec in (sample.rest["codec"], Codec.NONE)
    assert batch.header.publish_time_min == min(sample.publish_times)
    assert batch.header.publish_time_max == max(sample.publish_times)
    assert batch.header.deliver_at_max == max(sample.deliver_at)
    assert batch.header.publishable


@given(st.binary(max_size=99), st.text("ab\u00fc", max_size=9), st.integers(TIME_MIN, TIME_MAX), st.integers(-1, 9**9))
def test_a_lone_row_has_the_bytes_that_any_other_way_gives_it(
    payload: bytes, name: str, time: int, sequence: int
) -> None:
    numbers = {"producer_id": 2**64 - 1, "producer_epoch": 7, "schema_id": 3, "schema_version": 5}
    lone = encode([payload], publish_times=time, producer_name=name, first_sequence=sequence, **numbers)
    origin = Origin(name.encode(), first_sequence=sequence, **numbers)
    assert lone == assemble(EncodedRows([payload], time), origin, Codec.NONE)
    assert Batch.open(lone).payloads == [payload]


@given(samples())
def test_a_stamp_changes_nothing_but_the_stamp(sample: Sample) -> None:
    encoded = sample.encode()
    before = bytes(encoded)
    batch = Batch.open(encoded)
    batch.stamp(1_000, NOW, 3)
    assert encoded[:104] == before[:104]
    assert encoded[HEADER_BYTES:] == before[HEADER_BYTES:]
    for stamped in (batch, Batch.open(encoded, stamped=True), Batch.trust(encoded)):
        assert (stamped.base_offset, stamped.append_time, stamped.owner_epoch) == (1_000, NOW, 3)
        assert stamped.end_offset == 1_000 + len(sample.payloads)
        assert stamped.offsets.tolist() == [1_000 + row for row in range(len(sample.payloads))]
        assert_holds(stamped, sample)


def test_a_restamped_batch_has_its_new_offsets() -> None:
    batch = Batch.open(encode([b"a", b"b"], publish_times=NOW))
    assert batch.offsets.tolist() == [0, 1]
    batch.stamp(10, NOW, 1)
    assert batch.offsets.tolist() == [10, 11]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_largest_payload_fits(codec: Codec) -> None:
    payload = bytes(range(256)) * (MESSAGE_BYTES_MAX // 256)
    assert len(payload) == MESSAGE_BYTES_MAX
    batch = Batch.open(encode([payload, b"", payload], publish_times=NOW, keys=["a", None, "b"], codec=codec))
    assert batch.payloads == [payload, b"", payload]
    assert batch.header.codec is codec


def test_a_batch_of_the_most_messages_fits() -> None:
    batch = Batch.open(encode([b"x"] * BATCH_MESSAGES_MAX, publish_times=NOW))
    assert len(batch) == batch.count == batch.span == BATCH_MESSAGES_MAX
    assert batch.payloads == [b"x"] * BATCH_MESSAGES_MAX


def test_payloads_of_some_rows_are_those_of_all() -> None:
    payloads = [bytes([row % 256]) * (row % 7) for row in range(200)]
    for codec in Codec:
        batch = Batch.open(encode(payloads, publish_times=NOW, codec=codec))
        for start, end in ((0, 1), (0, 200), (13, 14), (13, 150), (199, 200)):
            assert batch.payloads_between(start, end) == payloads[start:end]
        assert batch.payload_offsets.tolist()[:4] == [0, 0, 1, 3]


@pytest.mark.parametrize("width", [0, 1, 7, 100, 5_000])
@pytest.mark.parametrize("count", [1, 32, 33, 200])
def test_payloads_of_one_length_are_cut_apart(width: int, count: int) -> None:
    payloads = [bytes([row % 256]) * width for row in range(count)]
    assert Batch.open(encode(payloads, publish_times=NOW)).payloads == payloads


def test_an_average_length_is_not_mistaken_for_one_length() -> None:
    payloads = [b"aa", b"b", b"ccc"] * 20
    assert Batch.open(encode(payloads, publish_times=NOW)).payloads == payloads


def test_large_payloads_of_different_lengths_are_cut_apart() -> None:
    payloads = [bytes([row]) * (2_000 + row) for row in range(50)]
    assert Batch.open(encode(payloads, publish_times=NOW)).payloads == payloads


def test_bytes_like_payloads_are_taken_as_bytes() -> None:
    wide = memoryview(np.arange(3, dtype=np.uint32))
    sparse = memoryview(b"a-b-c-")[::2]
    payloads = [b"a", bytearray(b"bc"), memoryview(b"def"), wide, sparse]
    assert Batch.open(encode(payloads, publish_times=NOW)).payloads == [b"a", b"bc", b"def", wide.tobytes(), b"abc"]


def test_columns_that_say_nothing_take_no_bytes() -> None:
    plain = encode([b"a", b"b"], publish_times=NOW)
    silent = encode([b"a", b"b"], publish_times=[NOW, NOW], keys=[None, None], attributes=[{}, None], deliver_at=[0, 0])
    assert silent == plain
    assert read_header(plain).columns == 0


def test_no_key_and_an_empty_key_are_two_things() -> None:
    batch = Batch.open(encode([b"", b"", b""], publish_times=NOW, keys=[None, "", "123456789"]))
    assert batch.keys == [None, "", "123456789"]
    assert batch.key_validity is not None
    assert batch.key_validity.tolist() == [False, True, True]
    assert batch.key_hashes is not None
    assert batch.key_hashes.tolist() == [0, 0, 0xCBF43926]


def test_data_that_does_not_shrink_is_stored_as_it_is() -> None:
    encoded = encode([b"x"], publish_times=NOW, codec=Codec.ZSTD)
    assert read_header(encoded).codec is Codec.NONE
    assert encoded == encode([b"x"], publish_times=NOW)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_leaves_the_columns_readable_without_it(codec: Codec) -> None:
    plain, packed = loaded(60), loaded(60, codec)
    assert len(packed) < len(plain)
    end = Batch.open(packed).place.end
    assert packed[HEADER_BYTES:end] == plain[HEADER_BYTES:end]


def test_a_message_is_its_row_with_times_as_datetimes() -> None:
    encoded = loaded()
    Batch.open(encoded).stamp(40, NOW + 5, 9)
    message = list(Batch.open(encoded, stamped=True).messages())[4]
    assert message.payload == b"payload 4"
    assert message.key == "schlüssel-4"
    assert message.attributes == {}
    assert message.offset == 44
    assert message.publish_time == datetime(2023, 11, 14, 22, 13, 20, 4, tzinfo=UTC)
    assert message.append_time == datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC)
    assert message.deliver_at == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)
    assert (message.producer, message.schema_id, message.schema_version) == ("fähre", 3, 1)
    assert "offset=44" in repr(message)


def test_a_message_can_be_given_more_fields() -> None:
    class Delivered(BatchMessage, gc=False, eq=False):
        topic: str

    batch = Batch.open(encode([b"a"], publish_times=NOW))
    message = Delivered(batch, 0, "/default/orders")
    assert (message.payload, message.topic, message.deliver_at) == (b"a", "/default/orders", None)


def test_a_batch_holds_the_callers_buffer_not_a_copy() -> None:
    buffer = encode([b"abc"], publish_times=NOW)
    batch = Batch.open(buffer)
    batch.stamp(7, NOW, 1)
    assert read_header(buffer).base_offset == 7


def test_trust_leaves_out_what_follows_the_batch() -> None:
    encoded = encode([b"abc"], publish_times=NOW)
    batch = Batch.trust(bytes(encoded) + bytes(64))
    assert bytes(batch.view) == encoded
    assert batch.payloads == [b"abc"]


def test_arrow_is_not_needed_to_hold_a_batch() -> None:
    program = "import sys, pydanube.codec.batch; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_codecs_are_named_in_text() -> None:
    assert [Codec.parse(str(codec)) for codec in Codec] == list(Codec)
    with pytest.raises(Exception, match="codec 'gzip' is unknown: use none, lz4 or zstd"):
        Codec.parse("gzip")


@pytest.mark.parametrize("count", [1, 2, 32, 33, 500])
@pytest.mark.parametrize("width", [0, 1, 7, 8, 100])
@pytest.mark.parametrize("last", [0, 1])
def test_payloads_of_one_length_and_nearly_so_come_back(count: int, width: int, last: int) -> None:
    """Many of one length take a way of their own; the last one is longer, or is not."""
    payloads = [bytes([row % 256]) * (width + (last if row == count - 1 else 0)) for row in range(count)]
    batch = Batch.open(memoryview(encode(payloads, publish_times=1)))
    assert [bytes(payload) for payload in batch.payloads] == payloads


class Shouted(str):
    """Text with a length of its own."""

    def __len__(self) -> int:
        return 2 * super().__len__()


@pytest.mark.parametrize(
    "keys",
    [
        [f"key-{number}" for number in range(100)],
        [""] * 99 + ["k"],
        [""] * 100,
        ["k" * (number % 65) for number in range(100)],
        ["k" * (number % 66) for number in range(100)],
        ["k"] * 99 + ["ü"],
        ["k"] * 99 + [None],
        ["k"] * 99 + ["with\0zero"],
        ["\0"] * 100,
        ["k"] * 99 + [Shouted("loud")],
        ["k" * 64] * 20_000,
    ],
)
def test_keys_and_their_hashes_are_the_same_however_they_are_made(keys: list[str | None]) -> None:
    whole = Batch.open(encode([b"x"] * len(keys), publish_times=NOW, keys=keys))
    assert whole.keys == keys
    assert whole.key_hashes is not None
    assert whole.key_hashes.tolist() == [0 if key is None else zlib.crc32(str(key).encode()) for key in keys]
    builder = BatchBuilder()
    for key in keys:
        builder.add(b"x", key, publish_time=NOW)
    assert bytes(builder.build(producer_id=0, producer_epoch=0, first_sequence=-1)) == bytes(whole.view)
