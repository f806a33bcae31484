"""What the areas of a client's administration have in common: how they ask a broker, and pages of names."""

from __future__ import annotations

from typing import TypedDict

from pydanube.client.connection.routing import Brokers
from pydanube.client.lifecycle import Openable
from pydanube.model.paging import NamePage, PageQuery, page_of_names
from pydanube.operations import AnswerT, Operation, answer_of


class Asking(Openable):
    """The part of a client that asks any broker for something."""

    _brokers: Brokers

    async def _do(self, operation: Operation[AnswerT]) -> AnswerT:
        """Ask any broker for an operation, again after a disconnect if it may be repeated, and return the answer."""
        self._check_open()
        return await self._brokers.call(operation, answer_of(type(operation)), repeatable=operation.may_repeat)


class Area:
    """Base of one area of a client's administration, such as `client.topics`."""

    def __init__(self, client: Asking) -> None:
        self._client = client


class PageArguments(TypedDict, total=False):
    """The arguments of `pydanube.model.paging.PageQuery`."""

    filter: str
    sort: str
    limit: int
    after: str


def name_page(answer: NamePage, query: PageQuery) -> NamePage:
    """Return the page of an answer. A broker of an earlier release answers with all names: the page is cut from
    them."""
    return answer if answer.next else page_of_names(sorted(answer.names), query)
