"""Recognises a peer that is not a danube broker by the first bytes it sends, and describes it for the user.

A broker's first frame is small and has a header that the other protocols' first bytes do not form:

```
 HTTP      "HTTP/1.1 400 Bad Request"     the length would be more than a gigabyte
 SSH, FTP  "SSH-2.0-...", "220 ..."       the same: text
 TLS       15 03 0x 00 02 level reason    an alert, then the connection ends
 gRPC      00 00 nn 04 00 ...             HTTP/2 SETTINGS: the length would be more than 64 MiB
```
"""

from __future__ import annotations

import struct
from typing import Final

from pydanube.codec.native.frames import HEADER, frame_length
from pydanube.model.errors import Invalid
from pydanube.model.limits import ALIGNMENT, CONTROL_BYTES_MAX

from .servers import DEFAULT_PORT

FIRST_BYTES: Final = 64
"""How much of what a peer sent is looked at and quoted."""

NATIVE_PORT_HINT: Final = (
    f"clients connect to the native port of a broker, {DEFAULT_PORT} by default, or with http:// to its HTTP port; "
    f"with danubes:// or https:// where it has TLS"
)

_FIRST_FRAME_BYTES_MAX: Final = HEADER.size + CONTROL_BYTES_MAX + ALIGNMENT
_LENGTH: Final = struct.Struct("<I")
_TLS_RECORDS: Final = (0x15, 0x16)
_HTTP2_SETTINGS: Final = 0x04


class ForeignPeer(Exception):
    """The peer is not a danube broker: it answered in another protocol. The routing turns this into a DanubeError."""


def greeting_length(header: memoryview) -> int:
    """Return the length of a broker's first frame; raises Invalid if a broker cannot have sent it."""
    described = describe_peer(bytes(header))
    if described:
        raise Invalid(f"{described} answered")
    return frame_length(header)


def describe_peer(first: bytes) -> str:
    """Return what kind of server begins with these bytes; empty if a danube broker may have sent them."""
    if not first or _may_begin_frame(first):
        return ""
    if first.startswith((b"HTTP/", b"<")):
        return f"an HTTP server ({_quoted(first)})"
    if first.startswith(b"SSH-"):
        return f"an SSH server ({_quoted(first)})"
    if len(first) >= 3 and first[0] in _TLS_RECORDS and first[1] == 3 and first[2] <= 4:
        return "a TLS server"
    if len(first) >= 5 and first[:2] == b"\0\0" and first[3] == _HTTP2_SETTINGS:
        return "an HTTP/2 server, such as a gRPC listener,"
    return f"a server that speaks another protocol ({_quoted(first)})"


def _may_begin_frame(first: bytes) -> bool:
    if len(first) < _LENGTH.size:
        return True
    if first[0] in _TLS_RECORDS and first[1] == 3 and first[2] <= 4 and first[3] == 0:
        return False  # as a frame it would be larger than any first frame of a broker really is
    if len(first) < HEADER.size:
        return bool(HEADER.size <= _LENGTH.unpack_from(first)[0] <= _FIRST_FRAME_BYTES_MAX)
    length, _, _, zero, _, head_length = HEADER.unpack_from(first)
    return bool(HEADER.size + head_length <= length <= _FIRST_FRAME_BYTES_MAX and zero == 0)


def _quoted(first: bytes) -> str:
    line = first.splitlines()[0] if first.splitlines() else first
    return repr(line.decode("ascii", "backslashreplace"))
