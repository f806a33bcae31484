"""Listings in pages: a filter on the name, an order, and a token that says where the next page begins.

The token holds the place of the last entry in the order, not a number of entries: what is created or deleted between
two pages neither repeats nor hides another entry. Entries that are ordered by a number that changes meanwhile, such as
a backlog, may come twice or not at all.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final, NamedTuple

import msgspec

from .errors import Invalid
from .limits import NAME_CHARACTERS_MAX
from .statistics import TopicSummary

PAGE_MAX: Final = 1_000
"""The most entries of one page."""

FILTER_CHARACTERS_MAX: Final = 2 * NAME_CHARACTERS_MAX + 2
"""The longest filter: as long as the full name of a topic."""

AFTER_CHARACTERS_MAX: Final = 2_000
"""The longest token of a page."""

TOPIC_NUMBERS: Final = (
    "created_at",
    "partitions",
    "subscription_count",
    "producers",
    "messages",
    "stored_bytes",
    "published",
    "published_bytes",
    "messages_per_s",
    "bytes_per_s",
    "backlog",
    "backlog_bytes",
    "backlog_s",
)
"""The fields of `TopicSummary`, besides the name, by which topics can be sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """Which entries to list, in which order, and how many."""

    filter: str = ""
    """A glob (`*`, `?`, `[...]`) that must match the whole name; without any of these, a part of the name."""
    sort: str = "name"
    """The field to sort by, ascending; with a `-` before it, descending. Equal entries are sorted by name."""
    limit: int = 100
    after: str = ""
    """The token of the page before; empty: the first page."""

    def __post_init__(self) -> None:
        for one in (self.filter, self.sort, self.after):
            if not isinstance(one, str):
                raise Invalid(f"{one!r} is not text")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= PAGE_MAX:
            raise Invalid(f"limit={self.limit!r} is out of range: use 1 to {PAGE_MAX}")
        if len(self.filter) > FILTER_CHARACTERS_MAX:
            raise Invalid(f"the filter has {len(self.filter)} characters: use at most {FILTER_CHARACTERS_MAX}")

    def order(self, numbers: Sequence[str] = ()) -> Order:
        """Return the order. Raises Invalid for a field that is neither the name nor one of `numbers`."""
        name = self.sort.removeprefix("-")
        if name != "name" and name not in numbers:
            raise Invalid(
                f"sort {self.sort!r} is unknown: use {', '.join(['name', *numbers])}, with a - before it for descending"
            )
        return Order(name, self.sort.startswith("-"))

    def matcher(self) -> Callable[[str], object]:
        """Return a function that tells whether a name passes the filter."""
        if not self.filter:
            return lambda _: True
        if not any(one in self.filter for one in "*?["):
            return lambda name: self.filter in name
        return re.compile(translate(self.filter)).match


class Order(NamedTuple):
    """The order of a listing."""

    field: str
    descending: bool

    def key(self, number: float, name: Any) -> tuple[float, Any]:
        """Return the sort key of an entry that is ordered by a number."""
        return (-number if self.descending else number), name

    def token(self, number: float, name: str) -> str:
        """Return the token of the page that begins after this entry."""
        text = json.dumps([self.field, self.descending, number, name], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def parse_token(self, token: str) -> tuple[float, str]:
        """Return the number and the name in a token. Raises Invalid if it is no token of a listing in this order."""
        try:
            text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            by, descending, number, name = json.loads(text, parse_constant=_refuse)
            if not isinstance(name, str) or not isinstance(number, int | float) or abs(number) >= 2**63:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise Invalid(f"page token {token[:100]!r} is not one that a page returned as `next`") from None
        if (by, descending) != self:
            raise Invalid("the page token belongs to another order: use it with the `sort` of the page before")
        return number, name


def _refuse(text: str) -> None:
    raise ValueError(text)


class NamePage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One page of names, or all of them. `next` is the `after` of the next page; empty: there is none."""

    names: list[str]
    next: str = ""


class TopicPage(msgspec.Struct, frozen=True):
    """One page of topics. `next` is the `after` of the next page; empty: there is none.

    A topic with so many subscriptions that it does not fit an answer alone has an empty list of them.
    """

    topics: list[TopicSummary] = []
    next: str = ""

    @classmethod
    def of(cls, topics: list[TopicSummary], order: Order, *, more: bool) -> TopicPage:
        """Return a page; `more`: other topics follow."""
        if not more:
            return cls(topics)
        last = topics[-1]
        return cls(topics, order.token(0 if order.field == "name" else getattr(last, order.field), last.topic))


def page_of_names(names: Sequence[str], query: PageQuery) -> NamePage:
    """Return a page of names, which are in ascending order."""
    order, matches = query.order(), query.matcher()
    chosen = [name for name in names if matches(name)]
    if order.descending:
        chosen.reverse()
    if query.after:
        _, last = order.parse_token(query.after)
        chosen = [name for name in chosen if (name < last if order.descending else name > last)]
    page = chosen[: query.limit]
    return NamePage(page, order.token(0, page[-1]) if len(chosen) > len(page) else "")
