"""How numbers, times and addresses are shown: filters of the templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

SHOWN_CHARACTERS_MAX: Final = 4_000
"""Of a payload; the rest is one click away."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_CONTROL: Final = {
    **{number: f"\\x{number:02x}" for number in range(32) if number not in (9, 10, 13)},
    **{
        number: f"\\u{number:04x}"
        for number in (0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    },
}
"""What a browser would not show, or would turn the text around with."""


def number(value: float | None) -> str:
    """1234567 -> 1,234,567"""
    return "" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Per second, with a digit more where that says something."""
    if value is None:
        return ""
    return f"{value:,.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


def size(value: float | None) -> str:
    if value is None:
        return ""
    amount = float(value)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def span(seconds: float | None) -> str:
    """A duration in its two largest units: 93784 -> 1 d 2 h"""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    for (length, unit), (shorter, next_unit) in pairwise(_SPANS):
        if seconds >= length:
            rest = int(seconds % length // shorter)
            return f"{int(seconds // length)} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{int(seconds)} s"


def time(value: int | str | None) -> Markup:
    """A moment, in microseconds or ISO 8601: the browser shows it in the zone of the person."""
    if not value:
        return Markup("")
    moment = datetime.fromtimestamp(value / 1e6, UTC) if isinstance(value, int) else datetime.fromisoformat(value)
    exact = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, moment.strftime("%Y-%m-%d %H:%M:%S"))


def visible(text: object) -> str:
    """Text with the characters written out that show nothing or change the direction of others."""
    return str(text).translate(_CONTROL)


def payload(message: dict[str, Any]) -> str:
    """The payload of a message as REST tells it: indented JSON, text, or Base64 of something else."""
    if (encoded := message.get("payload_base64")) is not None:
        return f"base64: {encoded}"
    value = message.get("payload")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return visible(value)
    if isinstance(value, dict | list):
        return visible(json.dumps(value, indent=2, ensure_ascii=False))
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def shortened(text: str, characters: int = SHOWN_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def topic_address(topic: str) -> str:
    """The page of a topic."""
    return "/topics/" + "/".join(quote(part, safe="") for part in topic.strip("/").split("/"))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "number": number,
    "rate": rate,
    "size": size,
    "span": span,
    "time": time,
    "visible": visible,
    "payload": payload,
    "shortened": shortened,
    "topic_address": topic_address,
    "quoted": lambda text: quote(str(text), safe=""),
}
