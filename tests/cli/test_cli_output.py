"""What commands print: safe for terminals, whole for scripts."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.cli import output


@given(st.binary())
def test_every_payload_can_be_had_back_from_json(payload: bytes):
    text, encoding = output.payload_json(payload)
    assert (base64.b64decode(text) if encoding == "base64" else text.encode()) == payload


@given(st.binary())
def test_no_payload_steers_a_terminal(payload: bytes):
    shown = output.payload_text(payload, terminal=True)
    assert all(line.replace("\t", "").isprintable() for line in shown.split("\n"))


def test_text_stays_text():
    assert output.payload_text("größer → ok\tso".encode(), terminal=True) == "größer → ok\tso"
    assert output.payload_text(b"\xff\x1b[31m", terminal=True) == "\\xff\\x1b[31m"
    assert output.payload_text(b"\x1b[31m", terminal=False) == "\x1b[31m"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_for_people(count: int, shown: str):
    assert output.size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.8, "1,234,568"), (0.1234, "0.12"), (0.001, "0"), (99.5, "99.50"), (7, "7")]
)
def test_numbers_for_people(value: float, shown: str):
    assert output.number(value) == shown


def test_a_piped_table_is_never_cut_and_has_no_trailing_blanks(capsys: pytest.CaptureFixture[str]):
    output.table(["name", "value"], [("x" * 300, "1"), ("\x1b[2J", "")], title="t", right=["value"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "t"
    assert "x" * 300 in lines[2]
    assert lines[3] == "\\x1b[2J"
    assert all(line == line.rstrip() for line in lines)


def test_on_a_terminal_columns_give_way_so_that_each_row_takes_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [("0:1234567", "x" * 100, "y" * 50), ("0:2", "short", "z" * 300)]
    output.table(["place", "one", "other"], rows, right=["place"], cut=["one", "other"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "0:" in line]
    assert [line.split()[0] for line in lines] == ["0:1234567", "0:2"]
    assert all(len(line) <= 80 and "…" in line for line in lines)
    assert "short" in lines[1]


def test_fields_are_aligned(capsys: pytest.CaptureFixture[str]):
    output.fields([("a", 1), ("long name", "x\ny")])
    assert capsys.readouterr().out == "a          1\nlong name  x\\ny\n"
