r"""Parses format strings, as kcat has them, and the escapes of delimiters: `consume --format`, `-D`, `produce -K`.

```
 %s payload    %S its length in bytes    %R its length as 4 bytes, big endian
 %k key        %K its length in bytes, -1 without a key
 %t topic      %p partition    %o offset    %T publish time in milliseconds since 1970
 %h attributes, name=value,name=value       %% a percent sign
 \n \r \t \0 \\ \xNN    a byte
```

Everything else after a % or a backslash is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from pydanube.cli.output import payload_text
from pydanube.model.errors import Invalid

if TYPE_CHECKING:
    from pydanube.client import ReceivedBatch

Column = Callable[["ReceivedBatch", Sequence[bytes]], Iterable[bytes]]
"""Returns the text of one field for every message of a batch, which is given with the payloads to print."""

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"(?s)\\x[0-9A-Fa-f]{2}|\\.?|%.?|[^\\%]+")


def unescaped(text: str, whole: str | None = None) -> bytes:
    r"""Return the bytes of a text with escapes such as \n, \0 and \x1f.

    Raises Invalid for other escapes; the message shows them in `whole`, which `text` is a part of.
    """
    return b"".join(
        _unescape(part, whole or text) if part[0] == "\\" else part.encode("utf-8", "surrogateescape")
        for part in _PARTS.findall(text)
    )


def delimiter(text: str) -> bytes:
    """Parse a delimiter: one or more bytes, written as text with escapes."""
    if not text:
        raise Invalid(r"an empty delimiter separates nothing: use text, or an escape such as \n, \0 or \x1e")
    return unescaped(text)


def _unescape(part: str, text: str) -> bytes:
    if len(part) == 4:
        return bytes([int(part[2:], 16)])
    if part[1:] not in _ESCAPES:
        raise Invalid(rf"'{part}' in '{text}' is no escape: there are \n, \r, \t, \0, \\ and \xNN (two hex digits)")
    return _ESCAPES[part[1:]]


class MessageFormat:
    """A parsed format string."""

    def __init__(self, text: str) -> None:
        self._columns = [_column(part, text) for part in _PARTS.findall(text)]

    def render(self, batch: ReceivedBatch, payloads: Sequence[bytes] | None = None) -> Iterator[bytes]:
        """Yield the bytes of each message. `payloads` takes the place of the batch's own."""
        printed = batch.payloads if payloads is None else payloads
        return map(b"".join, zip(*(column(batch, printed) for column in self._columns), strict=True))

    @classmethod
    def parse(cls, text: str) -> MessageFormat:
        """Parse a format string. Raises Invalid, naming the part that is not known."""
        if not text:
            raise Invalid(r"an empty format prints nothing: use one such as '%o %k %s\n'")
        return cls(text)


def escaped(rendered: bytes) -> bytes:
    """Return bytes that are safe on a terminal: control characters but tab and newline as escapes."""
    return payload_text(rendered, terminal=True).encode()


def _column(part: str, text: str) -> Column:
    if part[0] != "%" or part == "%%":
        literal = b"%" if part == "%%" else unescaped(part, text)
        return lambda batch, _: repeat(literal, len(batch))
    if part[1:] not in _FIELDS:
        known = " ".join(f"%{one}" for one in _FIELDS)
        raise Invalid(f"{part!r} in {text!r} is no field of a message: there are {known} and %%")
    return _FIELDS[part[1:]]


def _keys(batch: ReceivedBatch, _: Sequence[bytes]) -> Iterator[bytes]:
    return ((key or "").encode() for key in batch.keys)


def _key_lengths(batch: ReceivedBatch, _: Sequence[bytes]) -> Iterator[bytes]:
    return (b"-1" if key is None else b"%d" % len(key.encode()) for key in batch.keys)


def _attributes(batch: ReceivedBatch, _: Sequence[bytes]) -> Iterator[bytes]:
    return (",".join(f"{name}={value}" for name, value in one.items()).encode() for one in batch.attributes)


_FIELDS: Final[dict[str, Column]] = {
    "s": lambda _, payloads: payloads,
    "S": lambda _, payloads: (b"%d" % len(payload) for payload in payloads),
    "R": lambda _, payloads: (len(payload).to_bytes(4, "big") for payload in payloads),
    "k": _keys,
    "K": _key_lengths,
    "t": lambda batch, _: repeat(batch.topic.encode(), len(batch)),
    "p": lambda batch, _: repeat(b"%d" % batch.partition, len(batch)),
    "o": lambda batch, _: (b"%d" % offset for offset in batch.offsets.tolist()),
    "T": lambda batch, _: (b"%d" % (micros // 1000) for micros in batch.publish_times_us.tolist()),
    "h": _attributes,
}
