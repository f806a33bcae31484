"""Format strings and delimiters: what kcat's fields print, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from pydanube.cli.messages.format_strings import MessageFormat, delimiter, escaped, unescaped
from pydanube.model.errors import Invalid


class TwoMessages(SimpleNamespace):
    """The columns of a received batch with two messages; the second has no key."""

    def __len__(self) -> int:
        return 2


BATCH = TwoMessages(
    topic="/default/t",
    partition=3,
    offsets=np.array([7, 9]),
    payloads=[b"\xff\x00", b""],
    keys=["ü", None],
    attributes=[{"a": "1", "b": "2"}, {}],
    publish_times_us=np.array([1_700_000_000_123_456, 999]),
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%s|", [b"\xff\x00|", b"|"]),
        ("%S ", [b"2 ", b"0 "]),
        ("%R%s", [b"\0\0\0\x02\xff\x00", b"\0\0\0\0"]),
        ("%k:%K;", ["ü:2;".encode(), b":-1;"]),
        ("%t[%p]@%o", [b"/default/t[3]@7", b"/default/t[3]@9"]),
        ("%T", [b"1700000000123", b"0"]),
        ("%h", [b"a=1,b=2", b""]),
        ("100%%\\n", [b"100%\n", b"100%\n"]),
        (r"\t\r\0\\\x1Fü", [b"\t\r\0\\\x1f\xc3\xbc"] * 2),
        ("only text\nof two lines", [b"only text\nof two lines"] * 2),
    ],
)
def test_a_format_prints_what_it_says(text: str, printed: list[bytes]):
    assert list(MessageFormat.parse(text).render(BATCH)) == printed


@pytest.mark.parametrize(("text", "named"), [("%s %q", "'%q'"), ("50%", "'%'"), ("x\\", "is no escape"), ("", "empty")])
def test_what_a_format_does_not_know_is_refused_by_name(text: str, named: str):
    with pytest.raises(Invalid, match=named):
        MessageFormat.parse(text)


@pytest.mark.parametrize("parse", [MessageFormat.parse, delimiter])
def test_an_unknown_escape_is_shown_as_it_was_typed(parse: Callable[[str], object]):
    with pytest.raises(Invalid) as refused:
        parse(r"a \q")
    assert refused.value.message.startswith(r"'\q' in 'a \q' is no escape")


def test_delimiters_have_the_same_escapes_and_no_fields():
    assert delimiter(r"\n") == b"\n"
    assert delimiter("%s") == b"%s"
    assert unescaped("\udcff") == b"\xff"  # a byte that is no text, as the shell hands it over
    with pytest.raises(Invalid, match=r"\\x"):
        delimiter(r"\x1")
    with pytest.raises(Invalid, match="empty"):
        delimiter("")


def test_a_terminal_gets_no_control_characters():
    assert escaped(b"a\x1b[2J\tb\n\xff") == b"a\\x1b[2J\tb\n\\xff"
