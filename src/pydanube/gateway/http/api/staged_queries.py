"""Operations on staged queries: queries that publish in transactions, such as those of Spark."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.paging import AFTER_CHARACTERS_MAX
from pydanube.model.staging import StagedQuery

from .operations import BASE, ApiCall, Operation
from .paging import AfterQuery


class StagedQueryPage(msgspec.Struct):
    """One page of queries, in order of their names."""

    queries: list[StagedQuery]
    next: str = ""
    """The value of `after` for the next page; empty: this is the last one."""


class OwnerQuery(msgspec.Struct):
    owner: Annotated[str, msgspec.Meta(max_length=AFTER_CHARACTERS_MAX)] = ""
    """The principal that the query belongs to, where several have one of this name."""


async def _list(call: ApiCall) -> StagedQueryPage:
    asked: AfterQuery = call.query
    return StagedQueryPage(*await call.broker.staging.queries(call.principal, asked.after, asked.limit))


async def _forget(call: ApiCall) -> None:
    await call.broker.staging.forget(call.principal, call.path["query"], call.query.owner)


OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{BASE}/staged-queries",
        name="listStagedQueries",
        summary="List the known queries",
        tag="staged queries",
        handler=_list,
        query=AfterQuery,
        reply=StagedQueryPage,
        reply_example=StagedQueryPage([StagedQuery("orders-copy", "9f2c", 41, 1_790_000_000_000_000)]),
        errors=(409,),
        native=(wire.ListStagedQueries,),
    ),
    Operation(
        method="DELETE",
        path=f"{BASE}/staged-queries/{{query}}",
        name="forgetStagedQuery",
        summary="Forget a query and its stages",
        description="Afterwards its batch ids count as new.",
        tag="staged queries",
        handler=_forget,
        query=OwnerQuery,
        native=(wire.ForgetStagedQuery,),
    ),
)
