"""Files that are replaced whole, and what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pydanube.runtime.whole_file import replacing


def write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text)


def names(directory: Path) -> list[str]:
    return [one.name for one in directory.iterdir()]


def test_a_file_is_made_or_replaced_and_nothing_is_left_beside_it(tmp_path: Path):
    for text in ("first", "second"):
        write(tmp_path / "rows", text)
        assert (tmp_path / "rows").read_text() == text
    assert names(tmp_path) == ["rows"]


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path):
    write(tmp_path / "rows", "whole")

    def fail() -> None:
        with replacing(tmp_path / "rows") as beside:
            beside.write_text("a part")
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert (tmp_path / "rows").read_text() == "whole"
    assert names(tmp_path) == ["rows"]


def test_a_link_stays_one_and_what_it_points_to_is_replaced(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    for text in ("first", "second"):
        write(tmp_path / "link", text)
        assert (tmp_path / "rows").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(tmp_path / "pipe", "rows")
        assert os.read(reading, 100) == b"rows"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert names(tmp_path) == ["pipe"]
