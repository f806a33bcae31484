"""The small parts of the client: addresses, partitions, the producer's buffer, receipts, bulk sends."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube import testing
from pydanube.client.connection.servers import BrokerAddress, parse_servers
from pydanube.client.consuming.messages import ReceivedBatch, rows_of
from pydanube.client.producing.message_intake import ANY_PARTITION, split_bulk
from pydanube.client.producing.partitioning import Partitioner, fnv1a_64_each
from pydanube.client.producing.pending_batches import MessageRows
from pydanube.client.producing.producer_buffer import ProducerBuffer
from pydanube.client.producing.receipts import Placed, Receipt, Receipts
from pydanube.client.settings import ConsumerSettings, ProducerSettings
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.model.errors import Invalid
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from pydanube.model.positions import Position, micros_from_datetime


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "found"),
        [
            ("danube://127.0.0.1:6655", [BrokerAddress("127.0.0.1", 6655)]),
            ("danube://a:1,b:2/", [BrokerAddress("a", 1), BrokerAddress("b", 2)]),
            ("DANUBE://a:1, a:1", [BrokerAddress("a", 1)]),
            ("localhost:7000", [BrokerAddress("localhost", 7000)]),
            ("broker.example", [BrokerAddress("broker.example", 6655)]),
            ("danube://[::1]:6655,[fe80::1]", [BrokerAddress("::1", 6655), BrokerAddress("fe80::1", 6655)]),
        ],
    )
    def test_are_read_from_a_url(self, url: str, found: list[BrokerAddress]) -> None:
        assert parse_servers(url) == (found, [], False)
        assert parse_servers(f"danubes://{url.rpartition('//')[2]}") == (found, [], True)

    @pytest.mark.parametrize(
        ("url", "found"),
        [
            ("http://a", [BrokerAddress("a", 8650)]),
            ("HTTP://a:1,b:2/", [BrokerAddress("a", 1), BrokerAddress("b", 2)]),
            ("http://a:1/, http://[::1]", [BrokerAddress("a", 1), BrokerAddress("::1", 8650)]),
            ("https://a:1,b", [BrokerAddress("a", 1), BrokerAddress("b", 8650)]),
        ],
    )
    def test_of_http_listeners_are_read_from_a_url(self, url: str, found: list[BrokerAddress]) -> None:
        servers = parse_servers(url)
        assert servers == ([], found, url.startswith("https"))
        assert parse_servers(str(servers)) == servers

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "danube://",
            "ftp://a:1",
            "http://",
            "http://a:1/path",
            "http://a:1,danube://b:2",
            "a:0",
            "a:65536",
            "a:x",
            "a:",
            "::1:6655",
            "a b:1",
            "a:1,,b:2",
            "a:1/path",
            "[::1",
        ],
    )
    def test_that_make_no_sense_are_refused_by_name(self, url: str) -> None:
        with pytest.raises(Invalid, match="broker"):
            parse_servers(url)

    def test_are_written_as_they_are_read(self) -> None:
        for text in ("h:1", "[::1]:2"):
            assert str(BrokerAddress.parse(text)) == text


class TestPartitions:
    def test_of_a_key_come_from_fnv_1a_of_its_utf8(self) -> None:
        assert fnv1a_64(b"") == 0xCBF29CE484222325
        assert fnv1a_64(b"a") == 0xAF63DC4C8601EC8C
        assert fnv1a_64(b"foobar") == 0x85944171F73967E8
        assert Partitioner(7).of_key("foobar") == 0x85944171F73967E8 % 7

    @given(st.lists(st.binary(max_size=90) | st.sampled_from([b"", bytes(700), b"\xff" * 9])), st.integers(0, 40))
    def test_of_many_keys_are_those_of_each(self, keys: list[bytes], before: int) -> None:
        keys = keys * 4  # on both sides of where numpy takes over from plain Python
        offsets = np.cumsum([before, *map(len, keys)], dtype=np.int32)
        hashes = fnv1a_64_each(offsets, memoryview(bytes(before) + b"".join(keys)).cast("b"))
        assert hashes.tolist() == [fnv1a_64(key) for key in keys]

    def test_without_a_key_take_turns(self) -> None:
        partitioner = Partitioner(3, first=4)
        seen = []
        for _ in range(4):
            seen.append(partitioner.current)
            partitioner.rotate()
        assert seen == [1, 2, 0, 1]

    def test_refuse_a_key_that_no_message_can_have(self) -> None:
        partitioner = Partitioner(3)
        for key in ("x" * (KEY_BYTES_MAX + 1), "\ud800", b"bytes"):
            with pytest.raises(Invalid, match="key"):
                partitioner.of_key(key)  # type: ignore[arg-type]


class TestProducerBuffer:
    async def test_is_given_in_the_order_of_asking(self) -> None:
        room = ProducerBuffer(10, 1_000)
        assert room.take_nowait(10, 10)
        order: list[str] = []

        async def wait(name: str, count: int) -> None:
            await room.take(count, 1)
            order.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("large", 8))
            group.create_task(wait("small", 1))
            await asyncio.sleep(0)
            assert not room.take_nowait(1, 1)  # others were first
            room.release(5, 5)
            await asyncio.sleep(0)
            assert order == []  # the small one would fit, but it is not its turn
            room.release(4, 4)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert order == ["large", "small"]

    async def test_is_free_again_when_the_one_who_waits_is_cancelled(self) -> None:
        room = ProducerBuffer(1, 100)
        room.take_nowait(1, 1)
        waiting = asyncio.get_running_loop().create_task(room.take(1, 1))
        await asyncio.sleep(0)
        room.release(1, 1)  # granted, and cancelled before it could run
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (room.messages, room.bytes) == (0, 0)
        assert room.take_nowait(1, 1)

    async def test_is_given_to_those_behind_one_who_is_cancelled_if_they_fit(self) -> None:
        room = ProducerBuffer(10, 1_000)
        assert room.take_nowait(9, 9)
        large, small = [asyncio.create_task(room.take(count, 1)) for count in (5, 1)]
        await asyncio.sleep(0)
        large.cancel()
        async with asyncio.timeout(60):
            await small
        assert (room.messages, room.bytes) == (10, 10)

    async def test_does_not_keep_a_place_for_one_who_is_cancelled(self) -> None:
        room = ProducerBuffer(10, 1_000)
        assert room.take_nowait(9, 9)
        waiting = asyncio.create_task(room.take(5, 5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert room.take_nowait(1, 1)

    def test_lets_one_piece_larger_than_itself_pass_alone(self) -> None:
        room = ProducerBuffer(10, 100)
        assert room.take_nowait(50, 5_000)
        assert not room.take_nowait(1, 1)


class TestBulk:
    def split(
        self, payloads: object, keys: object = None, attributes: object = None, partitions: int = 1, **limits: int
    ):  # type: ignore[no-untyped-def]
        found = split_bulk(
            payloads,  # type: ignore[arg-type]
            keys,  # type: ignore[arg-type]
            attributes,  # type: ignore[arg-type]
            Partitioner(partitions),
            limits.get("messages_max", 1_000),
            limits.get("bytes_max", 100_000),
        )
        return list(found)

    @given(
        st.lists(st.tuples(st.binary(max_size=50), st.none() | st.sampled_from("abcdef")), max_size=40),
        st.integers(1, 4),
        st.integers(1, 7),
        st.integers(1, 300),
        st.booleans(),
    )
    def test_keeps_every_payload_once_in_order_and_within_limits(
        self, rows: list[tuple[bytes, str | None]], partitions: int, messages_max: int, bytes_max: int, keyed: bool
    ) -> None:
        payloads = [payload for payload, _ in rows]
        keys = [key for _, key in rows] if keyed else None
        pieces = self.split(payloads, keys, partitions=partitions, messages_max=messages_max, bytes_max=bytes_max)
        indices = [index for piece in pieces for index in piece.indices]
        assert sorted(indices) == list(range(len(rows)))
        for piece in pieces:
            assert len(piece.payloads) <= messages_max
            assert piece.size <= bytes_max or len(piece.payloads) == 1
            assert list(piece.payloads) == [payloads[index] for index in piece.indices]
            assert list(piece.indices) == sorted(piece.indices)
            if keys is not None:
                assert list(piece.keys) == [keys[index] for index in piece.indices]
        for partition in {piece.partition for piece in pieces}:
            of_partition = [index for piece in pieces if piece.partition == partition for index in piece.indices]
            assert of_partition == sorted(of_partition)

    @given(
        st.lists(st.tuples(st.binary(max_size=50), st.none() | st.sampled_from("abcdef")), max_size=40),
        st.integers(1, 2),
        st.integers(1, 50),
        st.integers(1, 3_000),
    )
    def test_is_cut_alike_whether_its_keys_were_seen_before_or_not(
        self, rows: list[tuple[bytes, str | None]], partitions: int, messages_max: int, bytes_max: int
    ) -> None:
        payloads, keys = [payload for payload, _ in rows], [key for _, key in rows]
        partitioner = Partitioner(partitions)
        first, again = (list(split_bulk(payloads, keys, None, partitioner, messages_max, bytes_max)) for _ in range(2))
        assert first == again

    def test_sends_one_key_to_one_partition(self) -> None:
        pieces = self.split([b"x"] * 6, ["a", "b", None, "a", "b", None], partitions=5)
        where = {piece.keys[0]: piece.partition for piece in pieces}
        assert where["a"] == Partitioner(5).of_key("a")
        assert where["b"] == Partitioner(5).of_key("b")
        assert where[None] == ANY_PARTITION

    @pytest.mark.parametrize(
        "arguments",
        [
            (b"one payload",),
            (["text"],),
            ([b"x", 5],),
            ([b"x"], ["a", "b"]),
            ([b"x"], "a"),
            ([b"x"], [5]),
            ([b"x"], [["a"]]),
            ([b"x"], None, [{"a": 1}]),
            ([b"x"], None, ["no mapping"]),
            ([b"x"], None, [{str(number): "" for number in range(1_001)}]),
            ([bytes(MESSAGE_BYTES_MAX + 1)],),
        ],
    )
    def test_is_refused_whole_before_anything_is_queued(self, arguments: tuple[object, ...]) -> None:
        with pytest.raises(Invalid):
            self.split(*arguments)

    def test_of_nothing_is_nothing(self) -> None:
        assert self.split([]) == []

    def test_takes_anything_that_holds_bytes(self) -> None:
        (piece,) = self.split((bytearray(b"a"), memoryview(b"b"), b"c"))
        assert list(piece.payloads) == [b"a", b"b", b"c"]


class TestReceipts:
    def test_follow_the_runs(self) -> None:
        receipts = Receipts("/default/t", [Placed(1, 10, 2, False), Placed(0, 7, 1, True)])
        assert list(receipts) == [
            Receipt("/default/t", 1, 10),
            Receipt("/default/t", 1, 11),
            Receipt("/default/t", 0, 7, duplicate=True),
        ]
        assert receipts[-1].offset == 7
        assert receipts[1:] == [receipts[1], receipts[2]]
        with pytest.raises(IndexError):
            receipts[3]

    def test_are_in_the_order_of_the_payloads_also_with_keys(self) -> None:
        receipts = Receipts("/default/t", [Placed(1, 10, 2, False), Placed(0, 7, 1, False)], [[0, 2], [1]])
        assert [(one.partition, one.offset) for one in receipts] == [(1, 10), (0, 7), (1, 11)]

    def test_of_nothing_are_none(self) -> None:
        assert list(Receipts("/default/t", [])) == []


class TestSettings:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"batch_bytes": 0},
            {"batch_messages": 100_001},
            {"linger_ms": -1},
            {"in_flight_batches": 65},
            {"queue_messages": True},
            {"queue_bytes": 1.5},
            {"timeout": 0},
            {"name": "x" * 256},
        ],
    )
    def test_of_a_producer_out_of_range_are_refused_by_name(self, wrong: dict[str, object]) -> None:
        with pytest.raises(Invalid, match="name" if "name" in wrong else next(iter(wrong))):
            ProducerSettings(**wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["prefetch_messages", "prefetch_bytes", "refresh_seconds", "timeout"])
    def test_of_a_consumer_out_of_range_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(Invalid, match=name):
            ConsumerSettings(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [[5, 1_760_000_000_123_457, 7, 8], [7, 7, 7, 7]], ids=["each its own", "one for all"])
@pytest.mark.parametrize("ranges", [[], [(1, 3)], [(0, 1), (2, 4)]], ids=["all rows", "a range", "some rows"])
def test_a_message_has_the_publish_time_of_its_row(times: list[int], ranges: list[tuple[int, int]]) -> None:
    rows = MessageRows(0.0)
    for time_us in times:
        rows.add(b"x", None, None, time_us, 1)
    stored = Batch.open(bytes(rows.encode("", 1, 0, 0, Codec.NONE)))
    batch = ReceivedBatch(stored, "/default/orders", 0, rows=rows_of(ranges, len(times)))
    wanted = [times[row] for start, end in ranges or [(0, 4)] for row in range(start, end)]
    assert [micros_from_datetime(message.publish_time) for message in batch] == wanted
    assert batch.publish_times_us.tolist() == wanted


def test_arrow_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    received = ReceivedBatch(Batch.open(encode([b"x"], publish_times=1)), "/default/orders", 0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pydanube.codec.batch.arrow", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pydanube\[arrow\]'"):
        received.to_arrow()


async def test_a_setting_the_test_broker_does_not_know_is_an_argument() -> None:
    with pytest.raises(Invalid, match="argument of the test broker: nonsense"):
        async with testing.broker(nonsense=1):
            pass


class TestPositions:
    @pytest.mark.parametrize(
        "position", [2**63 - 1, str(2**63 - 1), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999"]
    )
    def test_the_last_that_can_be_meant_travel(self, position: str | int | datetime) -> None:
        assert Position.parse(str(Position.parse(position))) == Position.parse(position)

    @pytest.mark.parametrize(
        "position",
        [
            2**63,
            str(2**64),
            "9" * 5_000,
            Position("time", 1 << 62),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            "0001-01-01T00:00:00+01:00",
        ],
    )
    def test_beyond_what_travels_are_invalid(self, position: str | int | datetime | Position) -> None:
        with pytest.raises(Invalid, match="is not a position"):
            Position.parse(position)

    @pytest.mark.parametrize("offset", [-1, 2**63])
    def test_an_offset_that_no_message_has_is_invalid(self, offset: int) -> None:
        with pytest.raises(Invalid, match="negative or too large"):
            Position("offset", offset)
