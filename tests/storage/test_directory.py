"""The data directory refuses every start that would mix up or lose somebody's data, and says what to do instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pydanube.codec.wal import NodeIdentity, with_checksum
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import OsDisk
from pydanube.storage.directory import DataDirectory


def open_directory(path: Path, **choices: str) -> DataDirectory:
    return DataDirectory.open(OsDisk(), path, **choices)  # type: ignore[arg-type]


def test_an_empty_directory_becomes_a_data_directory_and_opens_again_as_the_same(tmp_path: Path) -> None:
    first = open_directory(tmp_path / "a" / "b")
    assert first.is_new
    first.close()
    again = open_directory(tmp_path / "a" / "b")
    assert not again.is_new
    assert again.identity == first.identity
    again.close()


def test_what_is_written_is_what_the_documentation_draws(tmp_path: Path) -> None:
    DataDirectory.open(OsDisk(), tmp_path, incarnation=lambda: "5f" * 16).close()
    assert (tmp_path / "IDENTITY").read_bytes() == (
        b'{"format":1,"cluster":"danube","node":"broker-1","incarnation":"' + b"5f" * 16 + b'","parts":[]}\nf9c9697c\n'
    )


def test_a_directory_written_by_this_release_stays_readable(tmp_path: Path) -> None:
    line = b'{"format":1,"cluster":"danube","node":"broker-1","incarnation":"' + b"5f" * 16 + b'","parts":["wal"]}'
    (tmp_path / "IDENTITY").write_bytes(with_checksum(line))
    directory = open_directory(tmp_path)
    assert directory.knows("wal")
    assert directory.identity == NodeIdentity("danube", "broker-1", "5f" * 16)
    directory.close()


def test_two_disks_never_have_the_same_incarnation(tmp_path: Path) -> None:
    one, two = open_directory(tmp_path / "one"), open_directory(tmp_path / "two")
    assert one.identity != two.identity
    one.close()
    two.close()


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    held = open_directory(tmp_path)
    program = (
        "import sys; from pathlib import Path; from pydanube.runtime.disk import OsDisk\n"
        "from pydanube.storage.directory import DataDirectory\n"
        "from pydanube.model.errors import Refused\n"
        "try: DataDirectory.open(OsDisk(), Path(sys.argv[1]))\n"
        "except Refused as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert f"in use by process {os.getpid()}" in run.stdout
    held.close()
    run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout == ""


def test_a_newer_format_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "IDENTITY").write_bytes(with_checksum(b'{"format":2,"something":"else"}'))
    with pytest.raises(Refused, match="data format 2, and this release reads up to format 1: start the release"):
        open_directory(tmp_path)


def test_somebody_elses_disk_is_refused_by_name(tmp_path: Path) -> None:
    open_directory(tmp_path, node="broker-1").close()
    with pytest.raises(Refused, match="belongs to node 'broker-1', not to 'broker-2'"):
        open_directory(tmp_path, node="broker-2")
    with pytest.raises(Refused, match="belongs to cluster 'danube', not to 'other'"):
        open_directory(tmp_path, cluster="other")


def test_another_incarnation_of_the_same_node_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    expected = NodeIdentity("danube", "broker-1", "another")
    with pytest.raises(Refused, match="belongs to incarnation"):
        DataDirectory.open(OsDisk(), tmp_path, expected=expected)


def test_an_emptied_disk_is_refused_when_the_node_is_known(tmp_path: Path) -> None:
    expected = NodeIdentity("danube", "broker-1", "5f" * 16)
    with pytest.raises(Refused, match="is empty, but node 'broker-1' of cluster 'danube' had data in it"):
        DataDirectory.open(OsDisk(), tmp_path, expected=expected)


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(Refused, match=r"holds 'thesis.tex' and no IDENTITY file"):
        open_directory(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LOCK", "thesis.tex"]


def test_a_mount_point_with_lost_and_found_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    open_directory(tmp_path).close()


def test_a_damaged_identity_is_not_replaced(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    file = tmp_path / "IDENTITY"
    damaged = bytearray(file.read_bytes())
    damaged[30] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(Corrupt, match="put back a copy"):
        open_directory(tmp_path)
    assert file.read_bytes() == damaged


def test_a_part_once_known_must_be_there(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert not directory.knows("wal")
    directory.add_part("wal")
    directory.add_part("wal")
    directory.close()
    again = open_directory(tmp_path)
    assert again.knows("wal")
    again.close()


def test_a_refused_start_lets_go_of_the_lock(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    with pytest.raises(Refused):
        open_directory(tmp_path, node="other")
    open_directory(tmp_path).close()


def test_a_new_directory_begins_a_cluster_of_its_own_where_none_is_named(tmp_path: Path) -> None:
    one, two = (DataDirectory.open(OsDisk(), tmp_path / name, cluster=None) for name in ("one", "two"))
    assert one.identity.cluster != two.identity.cluster
    for directory in (one, two):
        directory.close()
    again = DataDirectory.open(OsDisk(), tmp_path / "one", cluster=None)
    assert again.identity == one.identity
    again.close()


def test_a_directory_that_is_being_filled_is_nobodys_until_its_first_part_is_there(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    filling = DataDirectory.begin(OsDisk(), tmp_path, cluster="c", node="broker-1", beside=frozenset({"objects"}))
    (tmp_path / "metadata.db").touch()
    filling.close()
    with pytest.raises(Refused, match="not a data directory"):
        open_directory(tmp_path)
    (tmp_path / "metadata.db").unlink()
    filling = DataDirectory.begin(OsDisk(), tmp_path, cluster="c", node="broker-1", beside=frozenset({"objects"}))
    filling.add_part("metadata")
    filling.close()
    opened = DataDirectory.open(OsDisk(), tmp_path, cluster=None)
    assert opened.identity == filling.identity
    assert opened.knows("metadata")
    opened.close()


@pytest.mark.parametrize("name", ["wal", "metadata.db", "IDENTITY", "objects"])
def test_only_an_empty_directory_can_be_filled(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(Refused, match=f"holds '{name}'"):
        DataDirectory.begin(OsDisk(), tmp_path, cluster="c", node="broker-1")
