"""Lists in pages: the parameters that every list has, and cutting a page out of an ordered list of names."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Final

import msgspec

LIMIT_MAX: Final = 1_000
AFTER_CHARACTERS_MAX: Final = 4_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]
After = Annotated[str, msgspec.Meta(max_length=AFTER_CHARACTERS_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PartitionIndex = Annotated[int, msgspec.Meta(ge=0, le=9_999)]


class PageQuery(msgspec.Struct):
    limit: Limit = 100
    """The most entries of one page."""
    after: After = ""
    """`next` of the page before; empty: the first page."""


class NamePage(msgspec.Struct):
    """One page of names, in order."""

    names: list[str]
    next: str = ""
    """The value of `after` for the next page; empty: this is the last one."""


def page_of(names: list[str], query: PageQuery) -> NamePage:
    """Return one page of `names`, which are in order."""
    start = bisect_right(names, query.after) if query.after else 0
    end = start + query.limit
    page = names[start:end]
    return NamePage(page, page[-1] if end < len(names) else "")
