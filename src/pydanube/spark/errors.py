"""Finds the reason in what Spark raises, so that commands can print one line, and whether it would come again."""

from __future__ import annotations

import re
from typing import Final

from pydanube.model.text import one_line

_OURS: Final = re.compile(
    r"pydanube\.model\.errors\.\w+: (.+?)(?:\n\s*\n|\nTraceback|\n\s+at |\nJVM stack|SQLSTATE|$)", re.DOTALL
)
_PYTHON: Final = re.compile(r"^(?:[a-z_]\w*\.)*((?:[A-Z]\w*)?(?:Error|Exception)): (.+)$", re.MULTILINE)


def reason(error: BaseException) -> str:
    """Return the message of our error if one is the cause, else the first line of Spark's message."""
    text = str(error)
    if (ours := _OURS.search(text)) is not None:
        return " ".join(ours[1].split())
    if (raised := python_error(text)) is not None:
        return raised
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def python_error(text: str) -> str | None:
    """Return the last line of a Python traceback in Spark's message, with what to do if a module was not found."""
    found = list(_PYTHON.finditer(text)) if "Traceback" in text else []
    if not found:
        return None
    name, message = found[-1].groups()
    if name == "ModuleNotFoundError":
        message += ", in the Python that Spark runs: set PYSPARK_PYTHON to one that has it, on every machine"
    return f"{name}: {message}"


_COMES_AGAIN: Final = re.compile(r"pydanube\.model\.errors\.(Invalid|Corrupt): |SQLSTATE: (22|42|0A|P0)\w{3}")
"""Of the classes of SQLSTATE, 22 is about values (a cast or a division), 42 about names and types, 0A about what Spark
cannot do, and P0 is what SQL itself raises: `raise_error`, or an expectation that must hold."""


def comes_again(text: str) -> bool:
    """Return whether an error with this text would come again: something must be changed first."""
    return _COMES_AGAIN.search(text) is not None


_OUR_LINE: Final = re.compile(r"pydanube\.model\.errors\.\w+: (.*)")
_PLACE: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


def explain_sql(error: BaseException) -> str:
    """Return the reason without stack trace, plan and error codes. Lines and columns count from 1."""
    text = str(error)
    if (ours := _OUR_LINE.search(text)) is not None:
        return one_line(ours[1], 1000)
    reason = _CONDITION.sub("", text.strip())
    reason = re.split(r"SQLSTATE: \w+|\n\s*== SQL|;\s*\n|\n\s*JVM stacktrace|\n\tat ", reason)[0]
    reason = one_line(_STATE.sub("", reason), 1000).rstrip("; .")
    place = _PLACE.search(text)
    if place is None:
        return reason
    reason = one_line(reason.replace(place[0], "").replace("()", ""), 1000).rstrip("; .(")
    return f"line {place[1]}, column {int(place[2]) + 1}: {reason[:1].lower()}{reason[1:]}"
