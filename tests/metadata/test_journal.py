"""The journal: its bytes, crashes at every step, disks that fail, and stores of earlier releases."""

from __future__ import annotations

import asyncio
import contextlib
import lzma
import random
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from crc32c import crc32c
from faulty_disk import FaultyDisk, Killed
from hypothesis import given
from hypothesis import strategies as st

from conformance import keys, put
from pydanube.codec.metadata import (
    Changes,
    Contents,
    JournalRecordKind,
    MetadataEntry,
    SnapshotRows,
    StoreState,
    encode_body,
    encode_record,
    entry_checksum,
    lease_checksum,
    read_journal,
    scan_journal,
)
from pydanube.metadata import EmbeddedStore
from pydanube.metadata import journal as journal_module
from pydanube.metadata.database import Database
from pydanube.metadata.journal import journal_path
from pydanube.metadata.repair import open_database
from pydanube.metadata.store import Delete, KeyValue, Put
from pydanube.model.errors import Corrupt, Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from waiting import until

STORE_ID = "0123456789abcdef" * 2
SCHEMA_1 = Path(__file__).parent.parent / "golden" / "metadata-schema-1.db.xz"

# -- bytes -------------------------------------------------------------------------------------------------------------


def joined(*records: tuple[JournalRecordKind, int, SnapshotRows | StoreState | Changes]) -> bytes:
    data, checksum = b"", 0
    for kind, commit, body in records:
        encoded = encode_body(body)
        header, checksum = encode_record(kind, commit, encoded, checksum)
        data += header + encoded
    return data


def example() -> tuple[bytes, Contents]:
    """A journal with one record of each kind, and what it holds."""
    old, kept = MetadataEntry(b"/a", b"1", 1, 1, 1, 0), MetadataEntry(b"/b", b"\x00\xff", 2, 1, 3, 7)
    new = MetadataEntry("/größe".encode(), b"", 1, 5, 5, 0)
    snapshot = StoreState(STORE_ID, 4, 3, 7, 3, entry_checksum(old) + entry_checksum(kept) + lease_checksum((7, 500)))
    digest = entry_checksum(kept) + entry_checksum(new) + lease_checksum((8, 600))
    state = StoreState(STORE_ID, 5, 5, 8, 3, digest, (("f" * 32, 9),))
    data = joined(
        (JournalRecordKind.ROWS, 4, SnapshotRows([old, kept], [(7, 500)])),
        (JournalRecordKind.SNAPSHOT, 4, snapshot),
        (JournalRecordKind.CHANGES, 5, Changes(state, [new], [b"/a"], [(8, 600)], [7])),
    )
    return data, Contents(state, {entry.key: entry for entry in (kept, new)}, {8: 600})


GOLDEN = """
444d4a520101000004000000000000002100000000000000b3702b7c000000004ebb8e6a929296c4022f61c401310101010096c4022f62c4
0200ff02010307919207cd01f4444d4a5201020000040000000000000031000000000000007bfd50644ebb8e6acd51578597d92030313233
3435363738396162636465663031323334353637383961626364656604030703cf0000000188374dc290444d4a5201030000050000000000
0000750000000000000075c11fe5cd515785f015ef189597d920303132333435363738396162636465663031323334353637383961626364
656605050803cf00000001f09e34eb9192d9206666666666666666666666666666666666666666666666666666666666666666099196c408
2f6772c3b6c39f65c4000105050091c4022f61919208cd02589107
"""


def test_golden_bytes() -> None:
    data, contents = example()
    assert data.hex() == "".join(GOLDEN.split())
    assert read_journal(bytes.fromhex("".join(GOLDEN.split()))) == contents


def test_golden_checksums() -> None:
    assert entry_checksum(MetadataEntry(b"/a", b"1", 1, 2, 3, 4)) == 2590033691
    assert lease_checksum((7, 500)) == 2045102380


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data, contents = example()
    whole = [position for position in range(len(data)) if _is_whole(data[:position])]
    assert len(whole) == 1, "behind the snapshot; a journal cut there is an older one"
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                scan_journal(damaged)
    assert read_journal(data) == contents


def _is_whole(data: bytes) -> bool:
    try:
        scan_journal(data)
    except Corrupt:
        return False
    return True


def test_what_a_later_release_wrote_is_refused_by_name() -> None:
    data, _ = example()
    for at, value, named in ((4, 2, "version 2"), (5, 9, "kind 9"), (6, 1, "flags 0x0001")):
        header = bytearray(data[:32])
        header[at] = value
        with pytest.raises(Refused, match=named):
            scan_journal(bytes(header) + crc32c(header).to_bytes(4, "little") + data[36:])


def test_records_that_are_missing_or_repeated_are_noticed() -> None:
    state = StoreState(STORE_ID)
    one, two = (StoreState(STORE_ID, commit, commit) for commit in (1, 2))
    snapshot, first, second = (
        (JournalRecordKind.SNAPSHOT, 0, state),
        (JournalRecordKind.CHANGES, 1, Changes(one)),
        (JournalRecordKind.CHANGES, 2, Changes(two)),
    )
    assert scan_journal(joined(snapshot, first, second)).state == two
    for wrong in ([first], [snapshot, second], [snapshot, first, first], [snapshot, snapshot], []):
        with pytest.raises(Corrupt):
            scan_journal(joined(*wrong))
    whole = joined(snapshot, first, second)
    start, end = len(joined(snapshot)), len(joined(snapshot, first))
    with pytest.raises(Corrupt, match="does not follow"):
        scan_journal(whole[:start] + whole[end:])


def test_zeros_behind_the_last_record_are_its_end() -> None:
    data, contents = example()
    for zeros in (1, 35, 36, 5000):
        assert read_journal(data + bytes(zeros)) == contents
        assert scan_journal(data + bytes(zeros)).size == len(data)
        with pytest.raises(Corrupt):
            scan_journal(data + bytes(zeros) + b"\1" + bytes(zeros))


def test_rows_that_do_not_add_up_are_noticed() -> None:
    state = StoreState(STORE_ID, 1, 1, 0, 1, 5)
    with pytest.raises(Corrupt, match="its rows"):
        read_journal(
            joined(
                (JournalRecordKind.ROWS, 1, SnapshotRows([MetadataEntry(b"/a", b"", 1, 1, 1, 0)])),
                (JournalRecordKind.SNAPSHOT, 1, state),
            )
        )


def test_key_and_value_cannot_trade_bytes() -> None:
    assert entry_checksum(MetadataEntry(b"ab", b"c", 1, 1, 1, 0)) != entry_checksum(
        MetadataEntry(b"a", b"bc", 1, 1, 1, 0)
    )


@given(st.binary(max_size=300))
def test_bytes_that_are_no_journal_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        scan_journal(data)


def test_the_journal_lies_beside_the_database() -> None:
    assert journal_path(Path("/d/metadata.db")) == Path("/d/metadata.journal")
    assert journal_path(Path("/d/metadata")) == Path("/d/metadata.journal")
    assert journal_path(Path("/d/x.journal")) == Path("/d/x.journal.journal")


# -- crashes -----------------------------------------------------------------------------------------------------------

Snapshot = tuple[int, list[tuple[int, int]], list[KeyValue]]


def content(database: Database) -> Snapshot:
    return database.revision, database.leases(), database.scan("", "", 100_000)


def read(path: Path) -> Snapshot:
    database = open_database(path, OsDisk())
    try:
        return content(database)
    finally:
        database.close()


class History:
    """Random commits on one store, and what it held after each: `answered` of them were reported done."""

    def __init__(self, path: Path, disk: FaultyDisk, seed: int) -> None:
        self._path, self._disk, self._chance = path, disk, random.Random(seed)
        self.states: list[Snapshot] = []
        self.answered = 0

    def run(self, commits: int) -> None:
        database = open_database(self._path, self._disk)
        try:
            self.states.append(content(database))
            self.answered = 1
            for _ in range(commits):
                if self._chance.random() < 0.1:
                    database.close()
                    database = open_database(self._path, self._disk)
                database.begin()
                self._change(database)
                self.states.append(content(database))
                database.commit()
                self.answered = len(self.states)
                if database.journal_grown:
                    database.renew_journal()
        finally:
            database.close()

    def _change(self, database: Database) -> None:
        """Several requests in one commit."""
        for _ in range(self._chance.randint(1, 3)):
            key = self._chance.choice("abcdef")
            leases = [lease for lease, _ in database.leases()]
            match self._chance.randrange(6):
                case 0:
                    database.grant(self._chance.randint(1, 9999))
                case 1 if leases:
                    database.revoke(self._chance.choice(leases))
                case 2:
                    database.transact([], [Delete(key), Put(key + "x", b"")])
                case _:
                    lease = self._chance.choice([0, *leases])
                    database.transact([], [Put(key, self._chance.randbytes(200), lease)])

    def allowed(self) -> list[Snapshot]:
        """What a start may find: all that was answered, and perhaps the commit that was being made."""
        return self.states[max(0, self.answered - 1) :] or [(0, [], [])]


CRASHES = 20


def test_a_crash_at_any_step_loses_nothing_that_was_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    monkeypatch.setattr(journal_module, "RENEW_BYTES_MIN", 2_000)
    monkeypatch.setattr(journal_module, "EXTEND_BYTES", random.Random(seed).choice((1, 600, 3_000)))
    steps = _crash_at(None, seed, tmp_path / "whole")
    for step in random.Random(seed).sample(range(steps), min(steps, CRASHES)):
        print("step", step)
        _crash_at(step, seed, tmp_path / f"crash-{step}")


def _crash_at(crash_step: int | None, seed: int, place: Path) -> int:
    """Run a history until the process is killed before this step; open what it left, in three ways."""
    path, left, chance = place / "store" / "metadata.db", place / "left", random.Random(seed)
    disk = FaultyDisk()

    def before_step(number: int, what: str) -> None:
        if number == crash_step:
            shutil.copytree(path.parent, left)
            raise Killed

    disk.before_step = before_step
    history = History(path, disk, seed)
    if crash_step is None:
        history.run(12)
        assert read(path) == history.states[-1]
        return disk.steps
    with pytest.raises(Killed):
        history.run(12)
    killed = left / "metadata.db"
    _check(killed, place / "kill", history)
    # A power cut: of the journal's bytes that were not synced, any part is gone.
    journal = journal_path(killed)
    if journal.exists():
        if (pending := disk.pending.get(journal_path(path))) and not journal.with_name("metadata.journal.new").exists():
            _lose(journal, *pending, chance)
        _check(killed, place / "cut", history)
        # SQLite lost its write-ahead log as well: what was answered is in the journal. If the end of that is torn too,
        # the start is refused, because it is unknown whether the torn record was answered.
        killed.with_name("metadata.db-wal").unlink(missing_ok=True)
        try:
            _check(killed, place / "wal-lost", history)
        except Corrupt as error:
            print("refused:", error)
            assert _torn(journal)
    return disk.steps


def _lose(journal: Path, start: int, end: int, chance: random.Random) -> None:
    """Some of these bytes, up to the last of them, never reached the disk: the file ends there, or has its zeros."""
    data = bytearray(journal.read_bytes())
    end = len(data[:end].rstrip(b"\0"))
    lost = chance.randint(min(start, end), end)
    data[lost:end] = bytes(end - lost)
    journal.write_bytes(data[:lost] if chance.random() < 0.5 else data)


def _torn(journal: Path) -> bool:
    return not _is_whole(journal.read_bytes())


def _check(killed: Path, place: Path, history: History) -> None:
    shutil.copytree(killed.parent, place)
    path = place / killed.name
    found = read(path)
    assert found in history.allowed()
    assert read(path) == found
    for name in ("metadata.db", "metadata.db-wal"):  # and the second copy is whole again
        path.with_name(name).unlink(missing_ok=True)
    assert read(path) == found


def test_a_crash_at_any_step_of_a_repair_leaves_what_can_be_repaired(tmp_path: Path) -> None:
    first = tmp_path / "first" / "metadata.db"
    history = History(first, FaultyDisk(), seed=5)
    history.run(20)
    first.write_bytes(b"no database" * 999)
    first.with_name("metadata.db-wal").write_bytes(b"no write-ahead log either")
    crash_step = 0
    while True:
        place = tmp_path / str(crash_step)
        shutil.copytree(first.parent, place)
        disk = FaultyDisk()

        def before_step(number: int, what: str, crash_step: int = crash_step) -> None:
            if number == crash_step:
                raise Killed

        disk.before_step = before_step
        try:
            open_database(place / "metadata.db", disk).close()
            break
        except Killed:
            assert read(place / "metadata.db") == history.states[-1]
        crash_step += 1
    assert crash_step >= 5


# -- disks that fail ---------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def remove(path: Path) -> None:
    path.unlink()


def scribble(path: Path) -> None:
    path.write_bytes(b"no database" * 999)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


async def opened(path: Path, disk: FaultyDisk | None = None) -> EmbeddedStore:
    return await EmbeddedStore.open(path, SystemClock(), disk=disk)


async def test_a_commit_that_only_the_database_has_is_not_answered_as_done(path: Path, disk: FaultyDisk) -> None:
    async with await opened(path, disk) as store:
        await put(store, "/a")
        disk.full = True
        with pytest.raises(Unavailable, match=r"journal.*cannot be written"):
            await put(store, "/b")
        assert isinstance(store.failure, Unavailable)
        assert await keys(store) == ["/a", "/b"], "it has happened, which Unavailable allows"
        assert await store.revision() == 2
        assert not journal_path(path).exists(), "a journal that lacks a commit is no copy"
        results = await asyncio.gather(put(store, "/c"), store.get("/a"), put(store, "/d"), return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable, KeyValue, Unavailable]
        assert await keys(store) == ["/a", "/b"], "while there is one copy only, nothing is written"
        assert await store.revision() == 2
        disk.full = False
        assert await put(store, "/e") == 3
        assert store.failure is None
        assert read_journal(journal_path(path).read_bytes()).state.revision == 3
    remove(path)
    async with await opened(path) as store:
        assert await keys(store) == ["/a", "/b", "/e"]


async def test_after_a_commit_that_the_journal_lacks_no_further_one_is_made(path: Path, disk: FaultyDisk) -> None:
    """A group that fails is tried again request by request; the first one that misses the journal ends the writes."""
    async with await opened(path, disk) as store:
        await put(store, "/a")
        disk.full = True

        def fail(database: Database) -> None:
            raise sqlite3.OperationalError("one request that cannot be done")

        bad = store._submit(fail, writes=True)
        results = await asyncio.gather(bad, *(put(store, f"/{number}") for number in range(5)), return_exceptions=True)
        assert not any(isinstance(result, int) for result in results)
        assert len(await keys(store)) == 2
        disk.full = False


async def test_a_lease_whose_grant_was_not_answered_is_not_granted_twice(path: Path, disk: FaultyDisk) -> None:
    async with await opened(path, disk) as store:
        disk.full = True
        results = await asyncio.gather(*(store.grant_lease(60_000) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        disk.full = False
        granted, _ = await store.grant_lease(60_000)
        assert granted <= 4, "each was granted at most once"


async def test_a_journal_that_is_behind_never_brings_back_the_past(
    path: Path, disk: FaultyDisk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with await opened(path, disk) as store:
        await put(store, "/a")
        disk.full = True
        with pytest.raises(Unavailable):
            await put(store, "/b")
        left = tmp_path_factory.mktemp("left")
        for name, data in files(path).items():
            (left / name).write_bytes(data)
        disk.full = False
    async with await opened(left / "metadata.db") as store:
        assert await keys(store) == ["/a", "/b"]
    (left / "metadata.journal").unlink()
    scribble(left / "metadata.db")
    with pytest.raises(Corrupt, match="cannot be used either"):
        await opened(left / "metadata.db")


async def test_commits_share_one_sync_of_the_journal(path: Path, disk: FaultyDisk) -> None:
    async with await opened(path, disk) as store:
        before = disk.steps
        gate = threading.Event()
        held = asyncio.ensure_future(store._submit(lambda _: gate.wait()))
        puts = [asyncio.ensure_future(put(store, f"/{number}")) for number in range(200)]
        await until(lambda: store._waiting == 1 + len(puts))
        gate.set()
        await asyncio.gather(held, *puts)
        assert disk.steps - before < 50


async def test_a_journal_that_has_grown_is_written_anew(
    path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RENEW_BYTES_MIN", 20_000)
    monkeypatch.setattr(journal_module, "EXTEND_BYTES", 1_000)
    async with await opened(path, disk) as store:
        for number in range(100):
            await put(store, "/same", b"%d" % number * 500)
            assert await store.get("/same") is not None  # answered after the journal was looked at
            assert journal_path(path).stat().st_size < 25_000
        assert read_journal(journal_path(path).read_bytes()).entries[b"/same"].value == b"99" * 500
    assert sorted(file.name for file in path.parent.iterdir()) == ["metadata.db", "metadata.journal"]


async def test_a_journal_that_cannot_be_written_anew_for_its_size_stays_in_use(
    path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RENEW_BYTES_MIN", 5_000)
    async with await opened(path, disk) as store:

        def refuse_create(number: int, what: str) -> None:
            if what == "create":
                raise OSError(28, "no new files")

        disk.before_step = refuse_create
        for number in range(20):
            await put(store, "/same", b"%d" % number * 500)
        assert store.failure is None
        assert read_journal(journal_path(path).read_bytes()).state.revision == 20
        disk.before_step = lambda number, what: None
    remove(path)
    async with await opened(path) as store:
        assert await store.revision() == 20


async def test_a_full_disk_at_start_is_unavailable_and_changes_nothing(path: Path, disk: FaultyDisk) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
    scribble(path)
    before = files(path)
    disk.full = True
    with pytest.raises(Unavailable):
        await opened(path, disk)
    assert files(path) == before
    disk.full = False
    async with await opened(path, disk) as store:
        assert await keys(store) == ["/a"]


# -- earlier releases --------------------------------------------------------------------------------------------------


def put_schema_1(path: Path, old: bytes = b"", new: bytes = b"") -> None:
    """A database as the release before the journal wrote it; with `old` damaged to `new`."""
    path.write_bytes(lzma.decompress(SCHEMA_1.read_bytes()).replace(old, new, 1))


async def test_a_database_of_schema_1_is_upgraded(path: Path) -> None:
    put_schema_1(path)
    for _ in range(2):
        async with await opened(path) as store:
            names = [f"/topics/default/topic-{number:02}" for number in range(20) if number != 4]
            assert await keys(store) == ["/counters/topic", "/session/größe", *names]
            changed, session = await store.get("/topics/default/topic-03"), await store.get("/session/größe")
            assert changed is not None and session is not None
            assert (changed.value, changed.version, changed.create_revision, changed.mod_revision) == (
                b"changed",
                2,
                4,
                21,
            )
            assert (session.value, session.lease) == (b"\x00\xff", 2)
            assert await store.revision() == 23
            assert sorted(store._leases) == [1, 2]
            identity = await store.identity()
        assert sorted(file.name for file in path.parent.iterdir()) == ["metadata.db", "metadata.journal"]
    remove(path)
    async with await opened(path) as store:
        assert await store.identity() == identity
        assert await store.grant_lease(1_000) == (4, 1_000), "3 was given out by the earlier release"
        assert await put(store, "/more") == 24


async def test_a_damaged_database_of_schema_1_is_refused_whole(path: Path) -> None:
    put_schema_1(path, b"/topics/default/topic-11", b"/topics/default/topiC-11")
    with pytest.raises(Corrupt, match="damaged"):
        await opened(path)


async def test_an_upgrade_that_was_cut_short_is_done_again(path: Path, tmp_path: Path) -> None:
    steps = 0
    while True:
        place = tmp_path / str(steps) / "metadata.db"
        place.parent.mkdir()
        put_schema_1(place)
        disk = FaultyDisk()

        def before_step(number: int, what: str, steps: int = steps) -> None:
            if number == steps:
                raise Killed

        disk.before_step = before_step
        try:
            open_database(place, disk).close()
            break
        except Killed:
            assert read(place)[0] == 23
        steps += 1
    assert steps > 5


def make_without_tables(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


async def test_a_database_that_was_cut_short_when_it_was_made_is_set_aside(path: Path) -> None:
    make_without_tables(path)
    async with await opened(path) as store:
        assert await store.revision() == 0
    assert sorted(files(path)) == ["metadata.db", "metadata.db.damaged-1", "metadata.journal"]


async def test_a_database_of_schema_1_beside_a_journal_is_refused(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
    put_schema_1(path)
    with pytest.raises(Refused, match="earlier release"):
        await opened(path)
