"""Damaged metadata: every start gives exactly what was committed, or is refused; it is never wrong.

The files are those of a store that was closed, and of one that was killed (copied while it was open). Each case damages
one of them and opens the store. As long as the other copy is whole, the start must repair it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exhaustive import several
from pydanube.metadata.database import Database
from pydanube.metadata.repair import DAMAGED_KEPT_MAX, open_database
from pydanube.metadata.store import Compare, Delete, KeyValue, Put, StoreIdentity, Succession
from pydanube.model.errors import Corrupt, DanubeError, Refused
from pydanube.runtime.disk import OsDisk

FLIPS_PER_FILE = several(10, 40)
USER_VERSION = range(60, 64)
"""Of SQLite's header: whether a release later than this one wrote the file cannot be told from damage."""


@dataclass(frozen=True)
class Content:
    """All that can be asked of a store."""

    identity: StoreIdentity
    revision: int
    leases: list[tuple[int, int]]
    entries: list[KeyValue]


def commit(database: Database, act: Callable[[Database], object]) -> None:
    database.begin()
    act(database)
    database.commit()


def put(key: str, value: bytes = b"value", lease: int = 0) -> Callable[[Database], object]:
    return lambda database: database.transact([], [Put(key, value, lease)])


def delete(key: str) -> Callable[[Database], object]:
    return lambda database: database.transact([], [Delete(key)])


def content(database: Database) -> Content:
    """Ask in every way, and make sure that all of them agree."""
    entries = database.scan("", "", 100_000)
    assert [database.get(entry.key) for entry in entries] == entries
    for prefix in ("/topics/", "/subscriptions/", "/session/"):
        assert database.scan(prefix, "", 100_000) == [entry for entry in entries if entry.key.startswith(prefix)]
    return Content(database.identity(), database.revision, database.leases(), entries)


def read(path: Path) -> Content:
    database = open_database(path, OsDisk())
    try:
        return content(database)
    finally:
        database.close()


def fill(database: Database, chance: random.Random) -> None:
    """A history with keys of several kinds, changes, deletions, and leases that ended or did not."""
    for number in range(60):
        commit(database, put(f"/topics/default/topic-{number:03}", chance.randbytes(chance.choice((20, 120, 900)))))
        commit(database, put(f"/subscriptions/{number:08x}/{number % 5}", chance.randbytes(30)))
    for number in range(0, 60, 7):
        commit(database, delete(f"/topics/default/topic-{number:03}"))
        commit(database, put(f"/subscriptions/{number:08x}/{number % 5}", b"changed"))
    for _ in range(3):
        commit(database, lambda database: database.grant(30_000))
    for number in range(9):
        commit(database, put(f"/session/{number}", b"alive", lease=1 + number % 3))
    commit(database, lambda database: database.revoke(2))
    commit(database, lambda database: database.record_succession(Succession("7" * 32, 12)))


@dataclass(frozen=True)
class Example:
    """The files of one store, and what it held."""

    directory: Path
    files: list[str]
    content: Content

    def copy(self, place: Path) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.directory, place)
        return place / "metadata.db"


@pytest.fixture(scope="module", params=["closed", "killed", "killed early"])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """`killed`: the newest commits are in SQLite's write-ahead log only; `killed early`: all of them are."""
    place, copied = tmp_path_factory.mktemp("original"), tmp_path_factory.mktemp("copies") / "copy"
    path = place / "metadata.db"
    database = open_database(path, OsDisk())
    fill(database, random.Random(12))
    if request.param != "killed early":
        database.close()
        database = open_database(path, OsDisk())
    if request.param == "killed":
        for number in range(20):
            commit(database, put(f"/topics/later/topic-{number:03}", b"later"))
        commit(database, delete("/topics/default/topic-001"))
    expected = content(database)
    if request.param == "closed":
        database.close()
    shutil.copytree(place, copied)
    if request.param != "closed":
        database.close()
    return Example(copied, sorted(file.name for file in copied.iterdir()), expected)


def outcome(example: Example, path: Path) -> str:
    """Open what was damaged: `right`, or why it was refused. Wrong content fails the test."""
    try:
        found = read(path)
    except DanubeError as refused:
        return f"{type(refused).__name__}: {refused.message}"
    assert found == example.content
    # What was repaired, or had a damage that does not matter, can be written to and opened again.
    database = open_database(path, OsDisk())
    commit(database, put("/topics/default/topic-002", b"x" * 2000))
    commit(database, delete("/topics/default/topic-003"))
    after = content(database)
    database.close()
    assert read(path) == after
    return "right"


def damages(example: Example, seed: int) -> Iterator[tuple[str, str, Callable[[bytearray], None]]]:
    """File, description and damage of every case."""
    chance = random.Random(seed)
    for name in example.files:
        size = len((example.directory / name).read_bytes().rstrip(b"\0"))  # the journal has zeros behind its records
        regions = [
            (size * part // FLIPS_PER_FILE, size * (part + 1) // FLIPS_PER_FILE) for part in range(FLIPS_PER_FILE)
        ]
        for start, end in regions:  # one somewhere in each region, so that every page is hit
            at, bit = chance.randrange(start, max(end, start + 1)), chance.randrange(8)

            def flip(data: bytearray, at: int = at, bit: int = bit) -> None:
                data[at] ^= 1 << bit

            yield name, f"bit {bit} of byte {at} flipped", flip
        for _ in range(8):
            at = chance.randrange(size)

            def cut(data: bytearray, at: int = at) -> None:
                del data[at:]

            yield name, f"cut at byte {at}", cut
        for _ in range(8):
            at, length = chance.randrange(size), chance.choice((1, 64, 512, 4096))

            def zero(data: bytearray, at: int = at, length: int = length) -> None:
                data[at : at + length] = bytes(len(data[at : at + length]))

            yield name, f"{length} bytes zeroed at byte {at}", zero


def test_damage_of_one_file_is_repaired_whatever_it_is(example: Example, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    cases = 0
    for name, what, damage in damages(example, seed):
        path = example.copy(tmp_path / "case")
        file = path.with_name(name)
        data = bytearray(file.read_bytes())
        damage(data)
        file.write_bytes(data)
        print(name, what)
        found = outcome(example, path)
        if found != "right":
            assert name == "metadata.db" and data[USER_VERSION.start : USER_VERSION.stop] != b"\0\0\0\2", found
        cases += 1
    assert cases >= 2 * (FLIPS_PER_FILE + 16)


@pytest.mark.exhaustive
def test_every_byte_of_the_header_may_be_damaged(example: Example, tmp_path: Path) -> None:
    """All of SQLite's header that means something."""
    for at in range(16, 72):
        path = example.copy(tmp_path / "case")
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        found = outcome(example, path)
        assert found == "right" or at in USER_VERSION, (at, found)


def test_a_schema_that_is_no_text_any_more_is_damage(example: Example, tmp_path: Path) -> None:
    """Python's module for SQLite refuses it with errors that have no code, or are none of SQLite's."""
    for text in (b"body BLOB NOT NULL", b"NOT NULL", b"TABLE state", b"state (", b"ROWID"):
        path = example.copy(tmp_path / "case")
        data = bytearray(path.read_bytes())
        data[data.rindex(text)] ^= 0x80
        path.write_bytes(data)
        assert outcome(example, path) == "right"


@pytest.mark.parametrize("removed", [["metadata.db"], ["metadata.db-wal"], ["metadata.db", "metadata.db-wal"]])
def test_a_database_that_was_removed_comes_back_from_the_journal(
    example: Example, tmp_path: Path, removed: list[str]
) -> None:
    path = example.copy(tmp_path / "case")
    for name in removed:
        path.with_name(name).unlink(missing_ok=True)
    assert outcome(example, path) == "right"


def test_a_journal_that_was_removed_is_written_anew(example: Example, tmp_path: Path) -> None:
    path = example.copy(tmp_path / "case")
    path.with_name("metadata.journal").unlink()
    assert read(path) == example.content
    path.unlink()
    path.with_name("metadata.db-wal").unlink(missing_ok=True)
    assert outcome(example, path) == "right"


def test_both_copies_damaged_are_refused_and_both_are_named(example: Example, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    refused: list[DanubeError] = []
    for _ in range(40):
        path = example.copy(tmp_path / "case")
        for name in example.files:
            file = path.with_name(name)
            data = bytearray(file.read_bytes())
            for _ in range(3):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
        # A journal with a flipped bit is never used, so what is served comes from the database and is all there;
        # only a write-ahead log that lost its newest commits cannot be told from one that never had them.
        try:
            found = read(path)
        except DanubeError as error:
            refused.append(error)
        else:
            assert found == example.content or "metadata.db-wal" in example.files
    messages = [error.message for error in refused if isinstance(error, Corrupt)]
    assert messages
    for message in messages:
        assert str(path) in message
        assert "metadata.journal" in message
        assert "danube storage restore" in message


def test_a_database_that_is_missing_beside_a_damaged_journal_is_refused(example: Example, tmp_path: Path) -> None:
    path = example.copy(tmp_path / "case")
    path.unlink()
    path.with_name("metadata.db-wal").unlink(missing_ok=True)
    journal = path.with_name("metadata.journal")
    journal.write_bytes(journal.read_bytes().rstrip(b"\0")[:-1])
    with pytest.raises(Corrupt, match=r"it is missing.*metadata\.journal.*cut short"):
        read(path)
    assert not path.exists()


def test_damaged_databases_are_kept_beside_the_good_one_and_not_for_ever(example: Example, tmp_path: Path) -> None:
    path = example.copy(tmp_path / "case")
    path.with_name("metadata.db-wal").unlink(missing_ok=True)  # SQLite would mend the database with it
    for _ in range(DAMAGED_KEPT_MAX + 3):
        path.write_bytes(b"certainly not a database" * 1000)
        assert read(path) == example.content
    kept = sorted(file.name for file in path.parent.iterdir() if "damaged" in file.name)
    assert kept == [f"metadata.db.damaged-{number}" for number in (4, 5, 6)]
    assert path.with_name(kept[0]).read_bytes().startswith(b"certainly")


def test_a_journal_of_another_store_is_refused_by_name(example: Example, tmp_path: Path) -> None:
    path = example.copy(tmp_path / "case")
    other = tmp_path / "other" / "metadata.db"
    read(other)
    shutil.copy(other.with_suffix(".journal"), path.with_suffix(".journal"))
    with pytest.raises(Refused, match=f"{example.content.identity.store_id}.*of store"):
        read(path)


def test_two_whole_copies_that_went_different_ways_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one" / "metadata.db"
    read(path)
    shutil.copytree(path.parent, tmp_path / "two")
    for number, one in enumerate((path, tmp_path / "two" / "metadata.db")):
        database = open_database(one, OsDisk())
        commit(database, put("/a", b"%d" % number))
        database.close()
    shutil.copy(tmp_path / "two" / "metadata.journal", path.with_suffix(".journal"))
    with pytest.raises(Corrupt, match="differ, and both are whole"):
        read(path)


def test_an_older_copy_of_the_database_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    read(path)
    older = path.read_bytes()
    database = open_database(path, OsDisk())
    commit(database, put("/a"))
    commit(database, lambda database: database.transact([Compare.missing("/b")], [Put("/b", b"", 0)]))
    expected = content(database)
    database.close()
    path.write_bytes(older)
    assert read(path) == expected


def test_a_lease_that_was_granted_by_the_last_commit_is_not_granted_again(tmp_path: Path) -> None:
    """Granting a lease changes no revision; the copies are compared by their commits."""
    path = tmp_path / "metadata.db"
    read(path)
    older = path.read_bytes()
    database = open_database(path, OsDisk())
    commit(database, lambda database: database.grant(1_000))
    commit(database, lambda database: database.revoke(1))
    database.close()
    path.write_bytes(older)
    database = open_database(path, OsDisk())
    database.begin()
    assert database.grant(1_000) == 2
    database.commit()
    database.close()
