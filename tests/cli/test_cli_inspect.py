"""`danube inspect`: what is stored, record by record, with damage named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import danube

from pydanube.cli.root import cli
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.model.errors import Corrupt

NOW = 1_700_000_000_000_000


def inspect(*arguments: str):
    return CliRunner().invoke(cli, ["inspect", *arguments])


@pytest.fixture
def stored(serve, tmp_path: Path) -> Path:
    """The data directory of a broker that took three batches and was stopped."""
    running = serve(tmp_path / "data")
    for text in ("one", "two", "three"):
        danube("produce", "/default/t", "-m", text, url=running.url).check_returncode()
    assert running.end() == 0
    return tmp_path / "data"


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.process
def test_the_log_is_shown_record_by_record(stored: Path):
    records = lines(inspect("wal", "--data-dir", str(stored), "--json").output)
    assert records[0]["kind"] == "FILE"
    data = [record for record in records if record["kind"] == "DATA"]
    assert [record["batch"]["base_offset"] for record in data] == [0, 1, 2]
    assert {record["state"] for record in records} == {"ok"}
    of_ledger = lines(inspect("wal", str(stored / "wal"), "--ledger", str(data[0]["ledger"]), "--json").output)
    assert [record for record in of_ledger if record["kind"] == "DATA"] == data
    shown = inspect("wal", str(stored), "--limit", "2")
    assert shown.exit_code == 0
    assert "only the first 2 are shown" in shown.output
    assert inspect("wal", str(stored), "--problems").exit_code == 0


@pytest.mark.process
def test_a_flipped_bit_is_named_and_sets_the_exit_code(stored: Path):
    first = next(r for r in lines(inspect("wal", str(stored), "--json").output) if r["kind"] == "DATA")
    file = stored / "wal" / first["file"]
    content = bytearray(file.read_bytes())
    content[first["position"] + 64 + 128 + 8] ^= 1
    file.write_bytes(content)
    found = inspect("wal", str(stored), "--problems", "--json")
    assert found.exit_code == 1
    (damaged,) = lines(found.output)
    assert (damaged["state"], damaged["position"], damaged["ledger"]) == (
        "damaged",
        first["position"],
        first["ledger"],
    )


def test_a_directory_without_a_log_is_a_failure(tmp_path: Path):
    done = inspect("wal", str(tmp_path))
    assert done.exit_code == 1
    assert "there is no log in" in done.output
    assert inspect("wal", str(tmp_path), "--data-dir", str(tmp_path)).exit_code == 2


def test_a_batch_is_checked_and_shown(tmp_path: Path):
    batch = Batch.open(
        encode(
            [b"one" * 100, b"\xff"],
            keys=["k", None],
            attributes=[{"a": "b"}, {}],
            publish_times=NOW,
            producer_name="p",
            codec=Codec.ZSTD,
        )
    )
    batch.stamp(7, NOW, 3)
    (tmp_path / "b").write_bytes(batch.view)
    told = json.loads(inspect("batch", str(tmp_path / "b"), "--json").output)
    assert (told["count"], told["codec"], told["base_offset"], told["producer"]) == (2, "zstd", 7, "p")
    assert [message["payload_encoding"] for message in told["messages"]] == ["utf-8", "base64"]
    assert told["messages"][0]["attributes"] == {"a": "b"}
    shown = inspect("batch", str(tmp_path / "b"), "--limit", "1").output
    assert "one" in shown
    assert "and 1 more" in shown


def test_a_damaged_batch_is_refused(tmp_path: Path):
    content = encode([b"one"], publish_times=NOW)
    content[-1] ^= 1
    (tmp_path / "b").write_bytes(content)
    assert isinstance(inspect("batch", str(tmp_path / "b")).exception, Corrupt)
