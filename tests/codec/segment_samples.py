"""Segments for the tests: random ones, whole ones as bytes, and how they are read back."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from batch_samples import NOW, samples
from crc32c import crc32c
from hypothesis import strategies as st

from pydanube.codec.batch import encode, stamp
from pydanube.codec.segment import SegmentBuilder, SegmentFooter, check_header, decode_footer, read_trailer
from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import ProducerEntry

WRITER = "4f1d2c"


@dataclass
class SectionSample:
    """The content of one section."""

    ids: tuple[int, int, int, int]
    batches: list[bytearray]
    producers: list[ProducerEntry] = field(default_factory=list)


def stored(payloads: list[bytes], offset: int, append_time: int = NOW, epoch: int = 3, **rest: object) -> bytearray:
    """Return a stamped batch."""
    batch = encode(payloads, publish_times=NOW, **rest)  # type: ignore[arg-type]
    stamp(batch, offset, append_time, epoch)
    return batch


def plain(count: int, first_offset: int = 0, size: int = 100, rows: int = 1, step_us: int = 1000) -> list[bytearray]:
    """Return batches of `rows` rows, appended `step_us` after each other."""
    row = bytes(size)
    return [stored([row] * rows, first_offset + n * rows, NOW + n * step_us) for n in range(count)]


def built(sections: list[SectionSample], block_bytes: int = 256 * 1024, writer: str = WRITER) -> bytes:
    builder = SegmentBuilder(writer, NOW, block_bytes=block_bytes)
    for section in sections:
        builder.begin(*section.ids)
        for batch in section.batches:
            builder.add(memoryview(batch))
        builder.end(section.producers)
    pieces, _ = builder.finish()
    content = b"".join(pieces)
    assert len(content) == builder.size
    return content


def one(batches: list[bytearray], block_bytes: int = 256 * 1024) -> bytes:
    """Return a segment of one section."""
    return built([SectionSample((7, 0, 31, 3), batches)], block_bytes)


def footer_of(content: bytes | bytearray, name: str = "object") -> SegmentFooter:
    trailer = read_trailer(content[-64:], len(content), name)
    return decode_footer(content[trailer.footer_start : trailer.footer_end], trailer)


def read_whole(content: bytes | bytearray, name: str = "object") -> list[list[memoryview]]:
    """Return the batches of each section, after all checks that a reader can make."""
    view = memoryview(content)
    check_header(view, name)
    found = []
    for section in footer_of(content, name).sections:
        if crc32c(view[section.start : section.end]) != section.crc:
            raise Corrupt(f"{name}: section at {section.start} does not match its checksum")
        found.append(section.split(view[section.start : section.end], section.start, name))
    return found


def sealed(content: bytes | bytearray, footer: bytes | None = None) -> bytes:
    """Return the object with another footer, and a trailer with correct checksums, as only a deliberate change has
    them."""
    trailer = read_trailer(content[-64:], len(content))
    old = content[trailer.footer_start : trailer.footer_end]
    new = bytes(old) if footer is None else footer
    head = bytes(content[: trailer.footer_start]) + new + bytes(-len(new) % 64)
    end = struct.pack(
        "<QIIIIQBBH20x4s", trailer.footer_start, len(new), crc32c(new), trailer.sections, 0, len(head) + 64, 1, 0, 0,
        b"DEND",
    )  # fmt: skip
    return head + end + struct.pack("<I", crc32c(end))


producer_entries = st.builds(
    ProducerEntry,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(*[st.integers(0, 2**62)] * 3), max_size=3),
)


@st.composite
def section_samples(draw: st.DrawFn) -> SectionSample:
    numbers = st.integers(0, 2**63 - 1)
    ids = (draw(numbers), draw(st.integers(0, 10_000)), draw(numbers), draw(st.integers(0, 2**32 - 1)))
    offset, time = draw(st.integers(0, 2**60)), draw(st.integers(0, NOW))
    batches = []
    for sample in draw(st.lists(samples(), min_size=1, max_size=5)):
        batch = sample.encode()
        time += draw(st.integers(0, 10))
        stamp(batch, offset, time, ids[3])
        batches.append(batch)
        offset += len(sample.payloads)
    return SectionSample(ids, batches, draw(st.lists(producer_entries, max_size=3)))
