"""Reads from an X.509 certificate what the broker needs of it: who it names, and when it begins and ends.

Certificates come as DER, from TLS (`ssl`, gRPC) or from a PEM file. The signature is checked by TLS, not here. Only the
part below is read, with the rules of DER: definite lengths, and no value may reach beyond the one that contains it.

```
 Certificate   SEQUENCE { tbsCertificate, ... }
 tbs           SEQUENCE { [0] version?, serial, signature, issuer, validity, subject, key, ..., [3] extensions? }
 validity      SEQUENCE { not before, not after }
 subject       SEQUENCE OF SET OF SEQUENCE { type OID, value string }
 extension     SEQUENCE { id OID, critical BOOLEAN?, value OCTET STRING }        2.5.29.17: alternative names
```
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final, NamedTuple

from pydanube.model.errors import Invalid

from .clock import MICROSECONDS

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)

_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3

_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString, as everybody writes it
    0x16: "ascii",  # IA5String
    0x1A: "ascii",  # VisibleString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
    0x12: "ascii",  # NumericString
}

_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 4514 names; others are written by their number."""

_ALTERNATIVE_NAMES: Final = "2.5.29.17"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says. Times are microseconds since 1970."""

    subject: str
    """The distinguished name as RFC 4514 writes it, the most specific part first: `CN=loader,O=Example`."""
    names: tuple[str, ...]
    """The alternative names with their kind: `DNS:loader.example`, `IP:10.0.0.1`, `URI:spiffe://...`, `email:a@b`."""
    begins_at_us: int
    expires_at_us: int


class _Value(NamedTuple):
    tag: int
    content: memoryview


def read_certificate(der: bytes) -> Certificate:
    """Return what the certificate says. Raises Invalid if these bytes are none."""
    try:
        return _read(der)
    except (ValueError, IndexError, StopIteration, OverflowError):
        raise Invalid("these bytes are no X.509 certificate") from None


def read_pem(pem: bytes) -> list[Certificate]:
    """Return the certificates of a PEM file in their order; the first is the owner's. Raises Invalid if there is none
    or if one cannot be read."""
    try:
        found = [base64.b64decode(one[1]) for one in _PEM.finditer(pem)]
    except (ValueError, binascii.Error):
        raise Invalid("these bytes are no PEM file") from None
    if not found:
        raise Invalid("there is no certificate in it: it has no line -----BEGIN CERTIFICATE-----")
    return [read_certificate(one) for one in found]


def _read(der: bytes) -> Certificate:
    (whole,) = _values(memoryview(der))
    fields = _values(next(_values(whole.content)).content)
    first = next(fields)
    if first.tag == _VERSION:
        next(fields)  # the serial number
    next(fields)  # the algorithm of the signature
    next(fields)  # the issuer
    begins, expires = _values(next(fields).content)
    subject = next(fields)
    names: tuple[str, ...] = ()
    for field in fields:
        if field.tag == _EXTENSIONS:
            (extensions,) = _values(field.content)
            names = tuple(_alternative_names(extensions.content))
    return Certificate(_distinguished_name(subject.content), names, _time_us(begins), _time_us(expires))


def _values(data: memoryview) -> Iterator[_Value]:
    """Yield the values that follow each other in `data`. Raises ValueError where they do not end with it."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if tag & 0x1F == 0x1F or length == 0x80:
            raise ValueError("neither long tags nor indefinite lengths occur in certificates")
        if length > 0x80:
            width = length & 0x7F
            length = int.from_bytes(data[at : at + width], "big")
            at += width
        if at + length > len(data):
            raise ValueError("a value ends after the one that contains it")
        yield _Value(tag, data[at : at + length])
        at += length


def _distinguished_name(content: memoryview) -> str:
    parts = []
    for together in _values(content):
        attributes = []
        for attribute in _values(together.content):
            kind, value = _values(attribute.content)
            number = _object_id(kind.content)
            attributes.append(f"{_SHORT_NAMES.get(number, number)}={_escaped(_text(value))}")
        parts.append("+".join(attributes))
    return ",".join(reversed(parts))


def _text(value: _Value) -> str:
    encoding = _ENCODINGS.get(value.tag)
    if encoding is None:
        return "#" + bytes(value.content).hex()
    return bytes(value.content).decode(encoding)


def _escaped(text: str) -> str:
    """Escape as RFC 4514 says, so that no value can look like a further attribute."""
    escaped = re.sub(r'([\\",+<>;])', r"\\\1", text).replace("\0", "\\00")
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


def _alternative_names(content: memoryview) -> Iterator[str]:
    for extension in _values(content):
        parts = list(_values(extension.content))
        if _object_id(parts[0].content) != _ALTERNATIVE_NAMES:
            continue
        (names,) = _values(parts[-1].content)
        for name in _values(names.content):
            value = bytes(name.content)
            match name.tag:
                case 0x82:
                    yield f"DNS:{value.decode('ascii')}"
                case 0x86:
                    yield f"URI:{value.decode('ascii')}"
                case 0x81:
                    yield f"email:{value.decode('ascii')}"
                case 0x87:
                    yield f"IP:{ip_address(value)}"


def _object_id(content: memoryview) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _time_us(value: _Value) -> int:
    text = bytes(value.content).decode("ascii")
    if value.tag == _UTC_TIME:  # two digits for the year: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(moment.timestamp()) * MICROSECONDS
