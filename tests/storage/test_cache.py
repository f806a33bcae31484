"""The tail cache against a model: a list of batches per partition and one budget."""

import random

from pydanube.storage.tail_cache import CachedTail, TailCache


def view(size: int) -> memoryview:
    return memoryview(bytes(size))


def test_a_tail_is_read_from_the_batch_that_holds_the_offset():
    cache, tail = TailCache(1000), CachedTail()
    first, second = view(10), view(20)
    cache.add(tail, 0, 5, first)
    cache.add(tail, 5, 9, second)
    assert (tail.start, tail.end, cache.bytes) == (0, 9, 30)
    assert tail.read(4, 1000) == [first, second]
    assert tail.read(5, 1000) == [second]
    assert tail.read(0, 29) == [first]
    assert tail.read(0, 0) == [first], "at least one batch, whatever the budget of the reader"


def test_the_oldest_batch_of_all_partitions_leaves_first():
    cache, one, two = TailCache(30), CachedTail(), CachedTail()
    cache.add(one, 0, 1, view(10))
    cache.add(two, 0, 1, view(10))
    cache.add(one, 1, 2, view(10))
    cache.add(two, 1, 2, view(10))
    assert (one.start, two.start, cache.bytes) == (1, 0, 30)


def test_a_batch_larger_than_the_budget_is_held_alone():
    cache, tail = TailCache(10), CachedTail()
    cache.add(tail, 0, 1, view(5))
    cache.add(tail, 1, 2, view(100))
    assert (tail.start, tail.end, len(tail)) == (1, 2, 1)


def test_a_gap_in_the_offsets_starts_a_new_tail():
    cache, tail = TailCache(1000), CachedTail()
    cache.add(tail, 0, 5, view(10))
    cache.add(tail, 100, 105, view(10))
    assert (tail.start, tail.end, cache.bytes) == (100, 105, 10)


def test_random_use_keeps_every_tail_gapless_and_the_budget(request):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cache, tails = TailCache(5_000), [CachedTail() for _ in range(5)]
    stored: list[list[tuple[int, int]]] = [[] for _ in tails]
    for _ in range(20_000):
        which = rng.randrange(5)
        base = tails[which].end
        end = base + rng.randint(1, 9)
        cache.add(tails[which], base, end, view(rng.randint(1, 200)))
        stored[which].append((base, end))
        if rng.random() < 0.001:
            cache.clear(tails[which])
        assert cache.bytes <= 5_000
        if len(tails[which]):
            offset = rng.randrange(tails[which].start, tails[which].end)
            expected = [pair for pair in stored[which] if pair[1] > offset]
            assert len(tails[which].read(offset, 1 << 30)) == len(expected)
    assert cache.bytes == sum(len(one) for tail in tails if len(tail) for one in tail.read(tail.start, 1 << 30))
