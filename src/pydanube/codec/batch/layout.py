"""Where the columns of a batch lie: positions in the fixed section, counted from the first byte of the batch.

The fixed section follows the header, is never compressed, and holds these columns in this order. Absent columns take no
bytes, and every column that is there is padded to 8 with zeros.

```
 payload offsets          int32[count + 1]     always
 key validity             bit[count]           KEY_VALIDITY   Arrow bit order: row r is bit r % 8 of byte r // 8
 key offsets              int32[count + 1]     KEY
 key hashes               uint32[count]        KEY            CRC-32 (zlib) of the key's UTF-8; 0 where there is no key
 publish times            int64[count]         PUBLISH_TIME   microseconds since 1970; absent: the header's for all
 attribute list offsets   int32[count + 1]     ATTRIBUTES     which attribute entries belong to a row
 attribute key offsets    int32[entries + 1]   ATTRIBUTES
 attribute value offsets  int32[entries + 1]   ATTRIBUTES
 deliver-at times         int64[count]         DELIVER_AT     0: at once
 offset deltas            uint32[count]        OFFSETS        from the base offset, rising; absent: 0, 1, 2 ...
 append times             int64[count]         APPEND_TIME    never falling; absent: the stamp's for all
 producer name            UTF-8                always         may be empty
```

The variable section follows: payload, key, attribute key and attribute value bytes, each padded to 8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

HEADER_BYTES: Final = 128

KEY: Final = 1
KEY_VALIDITY: Final = 2
PUBLISH_TIME: Final = 4
ATTRIBUTES: Final = 8
DELIVER_AT: Final = 16
OFFSETS: Final = 32
APPEND_TIME: Final = 64
COLUMNS_KNOWN: Final = KEY | KEY_VALIDITY | PUBLISH_TIME | ATTRIBUTES | DELIVER_AT | OFFSETS | APPEND_TIME


def padded(length: int) -> int:
    """Round up to a multiple of 8."""
    return (length + 7) & -8


class Layout(NamedTuple):
    """Start of each column; that of an absent one is where it would be. `end` is where the variable section begins."""

    payload_offsets: int
    key_validity: int
    key_offsets: int
    key_hashes: int
    publish_times: int
    attribute_lists: int
    attribute_keys: int
    attribute_values: int
    deliver_at: int
    offset_deltas: int
    append_times: int
    producer_name: int
    end: int


@lru_cache(maxsize=1024)
def layout(columns: int, count: int, attribute_entries: int, name_length: int) -> Layout:
    """Return the layout of a batch with these numbers. They need not have been checked: this is only arithmetic."""
    row_offsets = padded(4 * (count + 1))
    entry_offsets = padded(4 * (attribute_entries + 1))
    sizes = (
        row_offsets,
        padded((count + 7) // 8) if columns & KEY_VALIDITY else 0,
        row_offsets if columns & KEY else 0,
        padded(4 * count) if columns & KEY else 0,
        8 * count if columns & PUBLISH_TIME else 0,
        row_offsets if columns & ATTRIBUTES else 0,
        entry_offsets if columns & ATTRIBUTES else 0,
        entry_offsets if columns & ATTRIBUTES else 0,
        8 * count if columns & DELIVER_AT else 0,
        padded(4 * count) if columns & OFFSETS else 0,
        8 * count if columns & APPEND_TIME else 0,
        padded(name_length),
    )
    starts = [HEADER_BYTES]
    for size in sizes:
        starts.append(starts[-1] + size)
    return Layout(*starts)
