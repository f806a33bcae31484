"""Staged writes, which queries such as those of Spark publish in transactions. `model.staging` explains the terms."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.staging import StagedQuery

from .operation import Done, Operation, Rest

QUERIES_MAX: Final = 1_000
_Text = Annotated[str, Meta(max_length=2_000)]

_rest = partial(Rest, tag="staged queries")


class StagesCommitted(msgspec.Struct, omit_defaults=True):
    """The commit is durable. `repeated`: the batch was committed before, and this request changed nothing.

    `applied`: every partition has its messages; otherwise the broker publishes them soon.
    """

    repeated: bool = False
    applied: bool = True


class StagedQueries(msgspec.Struct):
    """One page of queries. The next page begins after `next`; empty: there is none."""

    queries: list[StagedQuery]
    next: str = ""


class CommitStages(Operation[StagesCommitted], tag="stage.commit"):
    """Publish these stages of a query's batch, all or none, exactly once.

    The answer comes when the commit is durable. A batch id that was committed before changes nothing. Refused as a
    whole if a stage does not exist any more; StaleEpoch if a later run of the query exists.
    """

    rest = "stages are batches in the native format, which only a native connection can send"
    query: str
    run: str
    batch_id: int
    stages: list[str]
    wait_ms: int = 0
    """How long to wait until the messages are visible."""


class ListStagedQueries(Operation[StagedQueries], tag="stage.queries"):
    """List the known queries."""

    rest = _rest(
        "GET",
        "/staged-queries",
        names={"limit": "count"},
        defaults={"count": 100},
        answer=StagedQueries([StagedQuery("orders-copy", "9f2c", 41, 1_790_000_000_000_000)]),
        errors=(409,),
    )
    after: _Text = ""
    """`next` of the page before; empty: the first page."""
    count: Annotated[int, Meta(ge=1, le=QUERIES_MAX)] = 1_000
    """The most queries of one page."""


class ForgetStagedQuery(Operation[Done], tag="stage.forget"):
    """Forget a query and its stages.

    Afterwards its batch ids count as new.
    """

    is_repeatable = False
    rest = _rest("DELETE", "/staged-queries/{query}")
    query: str
    owner: _Text = ""
    """The principal that the query belongs to, where several have one of this name."""


StagingOperation = CommitStages | ListStagedQueries | ForgetStagedQuery
