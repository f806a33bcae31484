"""`danube storage` against a broker of its own, and `danube inspect segment`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import Ended, danube

from pydanube.cli.root import cli

GOLDEN = Path(__file__).parents[1] / "golden" / "segment-0.1.seg"
TOPIC = "/default/orders"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def stored(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A broker that keeps garbage for no time, with three messages."""
    monkeypatch.setenv("DANUBE_STORAGE_GRACE_S", "0")
    running = serve(tmp_path / "data")

    def run(*arguments: str, code: int = 0) -> Ended:
        done = danube(*arguments, url=running.url)
        assert done.returncode == code, done.stderr
        return done

    run("produce", TOPIC, "-m", "one", "--count", "3")
    run.broker = running
    return run


def objects(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / "objects").rglob("*.seg"))


@pytest.mark.process
def test_history_is_uploaded_shown_verified_and_collected(stored, tmp_path: Path) -> None:
    waiting = json.loads(stored("storage", "usage", "--json").stdout)
    assert (waiting["status"]["uploads"], waiting["total"]["waiting_messages"]) == ("ok", 3)
    assert stored("storage", "upload").stdout.startswith("uploaded ")
    assert stored("storage", "upload", TOPIC).stdout == "nothing was waiting\n"
    usage = stored("storage", "usage").stdout
    assert "waiting      nothing" in usage
    assert TOPIC in usage
    assert "uploaded to" in stored("storage", "usage", TOPIC).stdout
    (segment,) = json.loads(stored("storage", "segments", TOPIC, "--json").stdout)
    assert (segment["first_offset"], segment["end_offset"]) == (0, 3)
    assert segment["object"] in stored("storage", "segments", TOPIC, "--from", "-1h").stdout
    assert stored("storage", "verify").stdout.startswith("sound: 1 segment, 3 messages")
    assert json.loads(stored("storage", "verify", TOPIC, "--rate", "1MiB", "--json").stdout)["sound"] is True
    url = (tmp_path / "data" / "objects").as_uri()
    assert "all sound" in stored("inspect", "segment", url, segment["object"], "--check").stdout
    stored("topics", "delete", TOPIC, "--yes")
    assert stored("storage", "gc", "--dry-run").stdout == "would delete 1 object\n"
    assert json.loads(stored("storage", "gc", "--orphans", "--json").stdout)["deleted"] == 1
    assert objects(tmp_path) == []


@pytest.mark.process
def test_damage_is_a_line_each_and_the_exit_code(stored, tmp_path: Path) -> None:
    stored("storage", "upload")
    (file,) = objects(tmp_path)
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)
    done = stored("storage", "verify", code=1)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"damaged: {TOPIC} partition 0 offsets 0..2: object segments/")
    assert "1 segment damaged or missing" in done.stderr
    (damage,) = json.loads(stored("storage", "verify", "--json", code=1).stdout)["damages"]
    assert damage["object"].endswith(file.name)
    file.unlink()
    assert stored("storage", "verify", code=1).stdout.startswith("missing: ")


@pytest.mark.process
def test_a_lost_disk_is_restored_from_the_store(stored, serve, tmp_path: Path) -> None:
    stored("subscriptions", "create", TOPIC, "billing", "--from", "earliest")
    stored("storage", "upload")
    assert stored.broker.end() == 0
    store = (tmp_path / "data" / "objects").as_uri()
    restored = tmp_path / "restored"
    done = stored("storage", "restore", "--data-dir", str(restored), "--store", store)
    assert "history             3 messages" in done.stdout
    assert "not empty" in stored("storage", "restore", "--data-dir", str(restored), "--store", store, code=1).stderr
    config = tmp_path / "danube.toml"
    config.write_text(f'[storage]\nurl = "{store}"\n')
    again = serve(restored, "--config", str(config))
    read = stored("consume", TOPIC, "--url", again.url, "-s", "billing", "--count", "3", "--timeout", "100")
    assert read.stdout.splitlines() == ["one"] * 3
    stored("produce", TOPIC, "-m", "behind the gap", "--url", again.url)
    stored("storage", "upload", "--url", again.url)
    assert stored("storage", "verify", "--url", again.url).stdout.startswith("sound: 2 segments, 4 messages")
    (described,) = json.loads(stored("topics", "describe", TOPIC, "--url", again.url, "--json").stdout)["partitions"]
    assert described["end_offset"] - described["missing_offsets"] == 4 and described["missing_offsets"] > 60_000_000
    told = json.loads(stored("topics", "stats", TOPIC, "--url", again.url, "--json").stdout)
    assert (told["messages"], told["total"]["subscriptions"][0]["backlog"]) == (4, 1), "the gap is no message"


def test_a_segment_is_shown_from_a_file() -> None:
    done = CliRunner().invoke(cli, ["inspect", "segment", str(GOLDEN), "--json", "--index", "--check"])
    told = json.loads(done.output)
    assert (told["writer"], told["sound"], [one["messages"] for one in told["sections"]]) == (
        "golden",
        True,
        [120, 3, 1],
    )
    assert told["sections"][0]["index"][0]["byte"] == 64
    assert told["sections"][1]["schemas"] == [{"id": 3, "version": 1}]
    shown = CliRunner().invoke(cli, ["inspect", "segment", str(GOLDEN), "--index"]).output
    assert "124 messages in 3 sections" in shown


def test_a_damaged_segment_says_what_and_where(tmp_path: Path) -> None:
    content = bytearray(GOLDEN.read_bytes())
    content[300] ^= 1
    file = tmp_path / "bad.seg"
    file.write_bytes(content)
    assert CliRunner().invoke(cli, ["inspect", "segment", str(file)]).exit_code == 0
    done = CliRunner().invoke(cli, ["inspect", "segment", str(file), "--check"])
    assert done.exit_code == 1
    assert "1 section damaged; first" in done.output
    content[-1] ^= 1
    file.write_bytes(content)
    assert "trailer does not match its checksum" in str(
        CliRunner().invoke(cli, ["inspect", "segment", str(file)]).exception
    )
    assert CliRunner().invoke(cli, ["inspect", "segment", str(tmp_path / "none.seg")]).exit_code == 2


@pytest.mark.parametrize(
    "wrong", [["verify", "--rate", "fast"], ["segments"], ["usage", "shop/orders"], ["restore", "--option", "novalue"]]
)
def test_wrong_usage_is_told_before_anything_is_asked(wrong: list[str]) -> None:
    assert CliRunner().invoke(cli, ["storage", *wrong]).exit_code == 2
