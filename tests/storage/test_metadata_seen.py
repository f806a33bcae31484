"""Metadata that is older than the log or the data directory, or is another store's, is refused; damage has a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from wal_simulation import make_batch
from wal_tools import SMALL, opened, sim_disk

from pydanube.codec.state import FORMAT, LedgerStart, encode
from pydanube.codec.wal import MetadataStamp, RecordKind
from pydanube.metadata.store import StoreIdentity, Succession
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import OsDisk
from pydanube.storage.metadata_seen import (
    ANY_STORE,
    REVISION_FILE,
    decode_seen,
    encode_seen,
    read_seen,
    refuse_older,
    write_seen,
)
from pydanube.storage.wal import DurabilityLevel

A, B, C = "a" * 32, "b" * 32, "c" * 32
WHERE, METADATA = Path("/data/wal"), Path("/data/metadata.db")


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_bytes_of_the_file_stay_what_they_are() -> None:
    content = b'{"store_id":"' + b"a" * 32 + b'","revision":1234}\n'
    assert encode_seen(MetadataStamp(A, 1234)).startswith(content)
    assert encode_seen(MetadataStamp(A, 1234)).removeprefix(content) == b"90af1f24\n"


def test_the_form_of_earlier_releases_is_read() -> None:
    assert decode_seen(b"1234") == MetadataStamp(ANY_STORE, 1234)


@given(st.integers(0, 400), st.integers(1, 255))
def test_no_damage_goes_unnoticed(position: int, mask: int) -> None:
    content = bytearray(encode_seen(MetadataStamp(A, 1234)))
    content[position % len(content)] ^= mask
    with pytest.raises(Corrupt):
        decode_seen(bytes(content))


@pytest.mark.parametrize("content", [b"", b"12x4", b"\xff\xfe", b"{}", b'{"store_id":1}\n00000000\n', b"9" * 30])
def test_what_cannot_be_read_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / REVISION_FILE).write_bytes(content)
    with pytest.raises(Corrupt, match=rf"{REVISION_FILE} .*put back a copy of it; or remove it"):
        read_seen(OsDisk(), tmp_path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_seen(OsDisk(), tmp_path) is None
    write_seen(OsDisk(), tmp_path, MetadataStamp(A, 7))
    assert read_seen(OsDisk(), tmp_path) == (A, 7)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "revision", "seen"),
    [
        (StoreIdentity(A), 10, {}),
        (StoreIdentity(A), 10, {A: 10}),
        (StoreIdentity(A), 10, {ANY_STORE: 10}),
        (StoreIdentity(B, (Succession(A, 10),)), 1, {A: 10}),
        (StoreIdentity(B, (Succession(A, 10),)), 5, {A: 9, B: 5}),
        (StoreIdentity(B, (Succession(A, 10),)), 1, {ANY_STORE: 10}),
    ],
)
def test_metadata_that_is_as_new_as_what_was_seen_is_taken(
    store: StoreIdentity, revision: int, seen: dict[str, int]
) -> None:
    refuse_older(store, revision, seen, WHERE, METADATA)


@pytest.mark.parametrize(
    ("store", "revision", "seen"),
    [
        (StoreIdentity(A), 9, {A: 10}),
        (StoreIdentity(A), 9, {ANY_STORE: 10}),
        (StoreIdentity(B, (Succession(A, 9),)), 100, {A: 10}),
        (StoreIdentity(B, (Succession(A, 10),)), 4, {A: 10, B: 5}),
    ],
)
def test_older_metadata_is_refused(store: StoreIdentity, revision: int, seen: dict[str, int]) -> None:
    with pytest.raises(Refused, match=r"/data/metadata\.db is older than /data/wal.*put back the newest copy"):
        refuse_older(store, revision, seen, WHERE, METADATA)


def test_another_store_is_refused() -> None:
    with pytest.raises(Refused, match=f"depends on metadata store {A}.* is store {C}, which does not succeed it"):
        refuse_older(StoreIdentity(C, (Succession(B, 99),)), 99, {A: 1}, WHERE, METADATA)


# -- what the log names ------------------------------------------------------------------------------------------------


async def test_every_new_file_names_the_newest_revision_that_was_noted() -> None:
    disk = sim_disk()
    async with opened(disk, metadata=MetadataStamp(A, 5)) as log:
        assert not log.recovered.is_stamped
        log.note_revision(9)
        log.note_revision(7)
        done: list[object] = []
        for entry in range(100):
            body, crc = make_batch(bytes(200), entry)
            log.append(RecordKind.DATA, 1, entry, 1, body, crc, DurabilityLevel.SYNC, done.append)
    async with opened(disk, metadata=MetadataStamp(B, 1)) as log:
        assert log.recovered.is_stamped
        assert log.recovered.metadata == {A: 9}
    async with opened(disk) as log:
        assert log.recovered.metadata == {A: 9, B: 1}
    async with opened(disk) as log:
        assert not log.recovered.is_stamped, "the newest file was written as by an earlier release"


async def test_the_first_entry_of_a_ledger_counts_too() -> None:
    disk = sim_disk()
    async with opened(disk, settings=SMALL, metadata=MetadataStamp(A, 5)) as log:
        body = encode(LedgerStart(FORMAT, 0, [], A, 12))
        log.append(RecordKind.LEDGER_START, 1, 0, 1, body, crc32c(body), DurabilityLevel.SYNC, lambda _: None)
        await log.held([])
        disk.crash()
        async with opened(disk, settings=SMALL) as again:
            assert again.recovered.metadata == {A: 12}
