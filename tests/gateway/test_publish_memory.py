"""The memory of unanswered publishes: who waits when it is used up, and who does not."""

from __future__ import annotations

from pydanube.gateway.publish_memory import PauseReason, PublishMemory, PublishShare

LIMIT_BYTES = 1_000


class Session:
    """Records whether the listener reads from it."""

    def __init__(self, share: PublishShare | None = None) -> None:
        self.publish_bytes = 0
        self.publish_share = share or PublishShare()
        self.is_read = True

    def pause_for(self, reason: int) -> None:
        assert reason == PauseReason.MEMORY
        self.is_read = False

    def resume_for(self, reason: int) -> None:
        assert reason == PauseReason.MEMORY
        self.is_read = True


def fill(memory: PublishMemory, sessions: list[Session], size: int = 10) -> None:
    """Publish through each session in turns for as long as the listener reads from it."""
    while reading := [one for one in sessions if one.is_read]:
        for one in reading:
            memory.take(one, size)


def test_one_session_leaves_half_of_the_memory_to_others() -> None:
    memory, greedy = PublishMemory(LIMIT_BYTES), Session()
    fill(memory, [greedy])
    assert LIMIT_BYTES // 2 <= memory.used_bytes <= LIMIT_BYTES // 2 + 10


def test_a_principal_with_many_sessions_leaves_as_much_as_one_with_one_session() -> None:
    memory = PublishMemory(LIMIT_BYTES)
    greedy = [Session(memory.share_of("user:eve")) for _ in range(20)]
    fill(memory, greedy)
    assert memory.used_bytes <= LIMIT_BYTES // 2 + 10 * len(greedy)  # each has taken one more batch at the most
    other = Session(memory.share_of("user:bob"))
    memory.take(other, 100)
    assert other.is_read


def test_sessions_of_a_principal_that_wait_are_read_again_when_one_of_them_gets_answers() -> None:
    memory = PublishMemory(LIMIT_BYTES)
    busy, quiet = (Session(memory.share_of("user:eve")) for _ in range(2))
    others = [Session(memory.share_of(f"user:{number}")) for number in range(3)]
    fill(memory, others)
    fill(memory, [busy])
    memory.take(quiet, 10)
    memory.give_back(quiet, 10)
    assert not quiet.is_read and not busy.is_read and memory.used_bytes > LIMIT_BYTES // 2
    memory.give_back(busy, busy.publish_bytes)
    assert memory.used_bytes > LIMIT_BYTES // 2
    assert quiet.is_read and busy.is_read
    assert not any(one.is_read for one in others)


def test_everybody_is_read_again_when_half_of_the_memory_is_free() -> None:
    memory = PublishMemory(LIMIT_BYTES)
    sessions = [Session(memory.share_of(f"user:{number}")) for number in range(4)]
    fill(memory, sessions)
    for one in sessions[:3]:
        memory.give_back(one, one.publish_bytes)
    assert all(one.is_read for one in sessions)


def test_a_share_is_forgotten_with_its_last_session() -> None:
    memory = PublishMemory(LIMIT_BYTES)
    first = Session(memory.share_of("user:eve"))
    assert memory.share_of("user:eve") is first.publish_share
    memory.take(first, 10)
    del first
    assert memory.share_of("user:eve").used_bytes == 0


def test_the_requests_of_a_principal_leave_memory_for_those_of_others() -> None:
    """Over gRPC and HTTP, on as many connections as it likes; what its native sessions have counts too."""
    memory = PublishMemory(LIMIT_BYTES)
    taken: list[PublishShare] = []
    while (share := memory.reserve(10, "user:eve")) is not None:
        taken.append(share)
    assert 300 <= memory.used_bytes <= LIMIT_BYTES // 3 + 10
    bob = memory.reserve(50, "user:bob")
    assert bob is not None
    memory.release(50, bob)
    for one in taken:
        memory.release(10, one)
    assert memory.used_bytes == 0
    taken.clear()
    native = Session(memory.share_of("user:eve"))
    memory.take(native, 400)
    other = memory.reserve(10, "user:bob")
    assert other is not None
    assert memory.reserve(200, "user:eve") is None, "its sessions have as much as is left already"
    assert memory.reserve(200, "user:ann") is not None
