"""Logging: one line per event on stderr, never on stdout.

An event is a dotted name in the past tense, its data are fields: `log.info("segment.sealed", topic=name, bytes=size)`.

    2026-01-31T12:00:00.000000Z info     segment.sealed           topic=/default/orders bytes=67108864 logger=storage
    {"time": "2026-01-31T12:00:00.000000Z", "level": "info", "event": "segment.sealed", "topic": "/default/orders", ...}

The client runs inside other programs: this module has its own configuration and never touches structlog's global one.
Until `configure` is called, which servers and commands do, events go to the program's own logging (the standard
library's, loggers `pydanube.client...`) if it has any handler, and follow its levels. In a program without one, only
warnings and worse are shown, on stderr.

Invariants
    one event is one line (a traceback follows on lines of its own, or is a JSON field); no control character of a
    field reaches a terminal
    a broken stderr never breaks the program that logs; a full one makes it wait, unless it is a `BackgroundFile`, as
    that of `danube serve` is
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, cast

import structlog
from structlog.typing import FilteringBoundLogger as Logger
from structlog.typing import Processor

from pydanube.model.settings.words import LOG_LEVELS

__all__ = ["Logger", "configure", "get_logger"]

_LEVEL_NUMBERS: Final[dict[str, int]] = {name: getattr(logging, name.upper()) for name in LOG_LEVELS}
_COLOURS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_COLOUR_SERIOUS: Final = "\x1b[31m"
_COLOUR_END: Final = "\x1b[0m"


class _Destination:
    """What `configure` set. Read at every event, so that it also applies to loggers made at import time."""

    level: int = logging.WARNING
    json: bool = False
    configured: bool = False


_destination = _Destination()


def configure(level: str = "info", json: bool = False) -> None:
    """Set the lowest level that is shown (one of LOG_LEVELS) and the form: text for people, or JSON lines."""
    assert level in LOG_LEVELS, f"log level {level!r} is none of {', '.join(LOG_LEVELS)}"
    _destination.level = _LEVEL_NUMBERS[level]
    _destination.json = json
    _destination.configured = True


def get_logger(name: str) -> Logger:
    """Return a logger whose events have the field `logger=name`. May be called at import time, before `configure`."""
    short = name.removeprefix("pydanube.")
    wrapped = structlog.wrap_logger(_Stderr(), processors=_PROCESSORS, wrapper_class=_BOUND)
    return cast(Logger, wrapped.bind(logger=short))


class _Stderr:
    """Writes finished lines to `sys.stderr` as it is at that moment."""

    def msg(self, line: str) -> None:
        # stderr is None, or a closed terminal or pipe: the event is lost
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = exception = fatal = log = msg


def _give_to_program(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Pass the event to the standard library's logging if the program has set that up and this module is not."""
    if _destination.configured:
        return event
    theirs = logging.getLogger(f"pydanube.{event.get('logger', '')}".rstrip("."))
    if not theirs.hasHandlers():
        return event
    level = _LEVEL_NUMBERS.get(method, logging.ERROR)
    if theirs.isEnabledFor(level):
        exception = event.pop("exc_info", None)
        name = _plain(str(event.pop("event")), spaces=True)
        fields = " ".join(f"{key}={_plain(value)}" for key, value in event.items() if key != "logger")
        theirs.log(level, "%s", f"{name} {fields}".rstrip(), exc_info=exception)
    raise structlog.DropEvent


def _drop_below_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _LEVEL_NUMBERS.get(method, logging.ERROR) < _destination.level:  # `exception` is an error too
        raise structlog.DropEvent
    return event


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    if _destination.json:
        ordered = {"time": event.pop("time"), "level": event.pop("level"), "event": event.pop("event"), **event}
        return cast(str, _json(logger, method, ordered))
    return _format_text(event)


def _format_text(event: MutableMapping[str, Any]) -> str:
    time, level, name = event.pop("time"), event.pop("level"), event.pop("event")
    exception = event.pop("exception", None)
    logger = event.pop("logger", None)
    if logger is not None:
        event["logger"] = logger  # last: least interesting
    coloured = f"{level:<8}"
    if _is_terminal():
        coloured = f"{_COLOURS.get(level, _COLOUR_SERIOUS)}{coloured}{_COLOUR_END}"
    fields = " ".join(f"{key}={_plain(value)}" for key, value in event.items())
    line = f"{time} {coloured} {_plain(str(name), spaces=True):<24} {fields}".rstrip()
    return line if exception is None else f"{line}\n{exception}"


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by an object that is no file
        return False


def _plain(value: object, *, spaces: bool = False) -> str:
    """Return the value as text, quoted if it is ambiguous or could control a terminal."""
    text = value if isinstance(value, str) else repr(value)
    clear = text.isprintable() and text != "" and not any(character in text for character in "='\"")
    return text if clear and (spaces or " " not in text or not isinstance(value, str)) else repr(text)


_json = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
_BOUND: Final = structlog.make_filtering_bound_logger(logging.DEBUG)
_PROCESSORS: Final[list[Processor]] = [
    _give_to_program,
    _drop_below_level,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    structlog.processors.format_exc_info,
    _render,
]
