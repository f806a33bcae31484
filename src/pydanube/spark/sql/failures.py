"""What Spark raises, in one line: the message of our own error in a task, or Spark's message with its place."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"pydanube\.model\.errors\.\w+: (.*)")
_PLACE: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


def explain(error: BaseException) -> str:
    """Return the reason without stack trace, plan and error codes. Lines and columns count from 1."""
    text = str(error)
    if (ours := _OURS.search(text)) is not None:
        return _one_line(ours[1])
    reason = _CONDITION.sub("", text.strip())
    reason = re.split(r"SQLSTATE: \w+|\n\s*== SQL|;\s*\n|\n\s*JVM stacktrace|\n\tat ", reason)[0]
    reason = _one_line(_STATE.sub("", reason)).rstrip("; .")
    place = _PLACE.search(text)
    if place is None:
        return reason
    reason = _one_line(reason.replace(place[0], "").replace("()", "")).rstrip("; .(")
    return f"line {place[1]}, column {int(place[2]) + 1}: {reason[:1].lower()}{reason[1:]}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]
