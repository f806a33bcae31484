"""What lists have in common: the types of their parameters. `model.paging` cuts pages."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.paging import AFTER_CHARACTERS_MAX

LIMIT_MAX: Final = 1_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]
After = Annotated[str, msgspec.Meta(max_length=AFTER_CHARACTERS_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PartitionIndex = Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX - 1)]


class AfterQuery(msgspec.Struct):
    """Which page of a list that has one order only."""

    limit: Limit = 100
    """The most entries of one page."""
    after: After = ""
    """`next` of the page before; empty: the first page."""
