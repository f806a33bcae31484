"""Cached batches stay in the chunks they arrived in, as long as those chunks hold little else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from native_peer import TOPIC, Peer, one_batch, open_listener

from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.native.chunks import LARGE_BYTES, SMALL_BYTES, TOLERATED_SHARE, Chunks
from pydanube.operations.operation import Done
from pydanube.operations.topics import CreateTopic
from pydanube.runtime.network import CHUNK_BYTES_MAX

BYTES = memoryview(bytes(LARGE_BYTES))

frames = st.lists(
    st.tuples(st.booleans(), st.integers(1, 13).flatmap(lambda power: st.integers(1, 2**power * 32))), max_size=200
)


def is_copied(chunks: Chunks, size: int) -> bool:
    batch = BYTES[:size]
    kept = chunks.keep_for_log(batch)
    assert kept == batch
    chunks.count_published(size, is_copy=kept is not batch, is_stored=True)
    return kept is not batch


def test_batches_that_come_without_anything_else_stay_where_they_are() -> None:
    chunks = Chunks()
    assert not any(is_copied(chunks, size) for size in (SMALL_BYTES, LARGE_BYTES) * 10)


def test_small_ones_are_always_copied() -> None:
    assert is_copied(Chunks(), SMALL_BYTES - 1)


def test_after_much_else_batches_are_copied_until_it_is_made_up_for() -> None:
    chunks = Chunks()
    chunks.count_other(10 * CHUNK_BYTES_MAX)
    copied = [is_copied(chunks, SMALL_BYTES) for _ in range(20)]
    made_up = CHUNK_BYTES_MAX // SMALL_BYTES
    assert copied == [True] * made_up + [False] * (20 - made_up)


def test_a_copy_that_is_not_stored_makes_up_for_nothing() -> None:
    """A repetition, or what is refused, passes by like anything else."""
    chunks, batch = Chunks(), BYTES[:SMALL_BYTES]
    chunks.count_other(SMALL_BYTES)
    for _ in range(10):
        assert chunks.keep_for_log(batch) is not batch
        chunks.count_published(SMALL_BYTES, is_copy=True, is_stored=False)
    assert is_copied(chunks, SMALL_BYTES)


def test_what_the_log_does_not_get_is_copied_unless_it_fills_half_a_chunk() -> None:
    chunks = Chunks()
    for size in (1, SMALL_BYTES, LARGE_BYTES - 1):
        assert chunks.keep_outside_log(BYTES[:size]) == BYTES[:size]
        assert chunks.keep_outside_log(BYTES[:size]).obj is not BYTES.obj
    assert chunks.keep_outside_log(BYTES).obj is BYTES.obj
    assert is_copied(chunks, SMALL_BYTES), "and it counts as something else"


@given(frames)
def test_chunks_that_are_kept_hold_little_else(arriving: list[tuple[bool, int]]) -> None:
    """Frames fill one chunk after another; a chunk is kept while a batch lies in it."""
    chunks, position, cached, kept = Chunks(), 0, 0, set[int]()
    for is_batch, size in arriving:
        if position % CHUNK_BYTES_MAX + size > CHUNK_BYTES_MAX:
            position += CHUNK_BYTES_MAX - position % CHUNK_BYTES_MAX
        if not is_batch:
            chunks.count_other(size)
        else:
            cached += size
            if not is_copied(chunks, size):
                kept.add(position // CHUNK_BYTES_MAX)
        position += size
    unfilled = LARGE_BYTES * len(kept)  # at the end of each, where the next frame had no room
    assert len(kept) * CHUNK_BYTES_MAX - unfilled <= (2 + 2 / TOLERATED_SHARE) * cached + 2 * CHUNK_BYTES_MAX


async def test_a_session_knows_what_of_all_that_came_is_not_in_the_log(native, peer, topic):
    producer = await peer.open_producer()
    chunks = (await native.session_of(peer))._chunks
    chunks._other_bytes = 0
    first, second = (one_batch(producer, 10, SMALL_BYTES // 8, sequence) for sequence in (0, 10))
    size = len(first)
    others = []
    for handle, batch in (
        (producer.handle, first),
        (producer.handle, first),  # a repetition
        (producer.handle + 99, second),  # nobody's
        (producer.handle, second),  # copied, and stored
    ):
        peer.publish(handle, batch)
        await peer.receive(FrameKind.PUBLISHED, FrameKind.ERROR)
        others.append(chunks._other_bytes)
    assert others == [0, size, 2 * size, size]


async def test_what_a_memory_topic_gets_is_in_memory_of_its_own(native, peer):
    await peer.request(CreateTopic(topic=TOPIC, ack_level="memory"), Done)
    producer = await peer.open_producer()
    chunks = (await native.session_of(peer))._chunks
    chunks._other_bytes = 0
    batch = one_batch(producer, 10, SMALL_BYTES // 8)
    peer.publish(producer.handle, batch)
    await peer.receive(FrameKind.PUBLISHED)
    assert chunks._other_bytes == len(batch)


async def test_what_a_peer_does_not_take_is_copied_by_and_by() -> None:
    async with (
        open_listener(keep_alive_ms=60_000) as there,
        await Peer.greet(there) as producing,
        await Peer.greet(there) as stuck,
    ):
        await producing.create_topic()
        producer = await producing.open_producer()
        consumer = await stuck.subscribe("asleep")
        stuck.credit(consumer.handle, 2**40, 2**40)
        stuck.stop_reading()
        connection = (await there.session_of(stuck)).connection
        while connection.writable:
            producing.publish(producer.handle, one_batch(producer, 10, SMALL_BYTES // 8))
            await producing.receive(FrameKind.PUBLISHED)
        waiting = connection.queued_bytes
        assert len(connection._outgoing) > 1
        await there.until(lambda: len(connection._outgoing) == 1)
        assert connection.queued_bytes == waiting
