"""Finds the reason in what Spark raises, so that commands can print one line."""

from __future__ import annotations

import re
from typing import Final

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
