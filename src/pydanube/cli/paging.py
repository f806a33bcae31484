"""The options --filter, --sort, --reverse, --limit and --after of commands that list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click

from pydanube.model.errors import Invalid
from pydanube.model.paging import PAGE_MAX, PageQuery

from .output import note, shown_as_json


class PageOptions(NamedTuple):
    """What the user chose to list."""

    filter: str
    sort: str
    """As in `PageQuery`."""
    limit: int | None
    after: str

    def __bool__(self) -> bool:
        """Whether anything but everything by name is asked for."""
        return self != PageOptions("", "name", None, "")

    def query(self, after: str) -> PageQuery:
        try:
            return PageQuery(filter=self.filter, sort=self.sort, limit=self.limit or PAGE_MAX, after=after)
        except Invalid as error:
            raise click.UsageError(error.message) from None

    async def collect(self, ask: Callable[[PageQuery], Awaitable[tuple[list[Any], str]]]) -> tuple[list[Any], str]:
        """Ask for pages until there are as many entries as --limit says, or all; return them and the next token."""
        found, after = list[Any](), self.after
        while True:
            left = PAGE_MAX if self.limit is None else min(PAGE_MAX, self.limit - len(found))
            entries, after = await ask(self._replace(limit=left).query(after))
            found += entries
            if not after or len(found) == self.limit:
                return found, after

    def show(self, what: str, names: Sequence[str], following: str) -> None:
        """Print names, one a line, or as JSON."""
        if shown_as_json(names if self.limit is None else {what: names, "next": following}):
            return
        for name in names:
            click.echo(name)
        self.note_following(following)

    def note_following(self, following: str) -> None:
        """Say on stderr how to get the next page, if there is one."""
        if following:
            note(f"there are more: add --after {following}")


def page_options(numbers: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options to a command, which gets them as the argument `page`.

    `numbers` are the fields that --sort takes besides the name; of these the largest comes first.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*arguments: Any, filter: str, reverse: bool, limit: int | None, after: str, **others: Any) -> None:  # noqa: A002
            field = others.pop("sort", "name")
            descending = (field != "name") != reverse
            page = PageOptions(filter, f"-{field}" if descending else field, limit, after)
            command(*arguments, page=page, **others)

        options = [
            click.option("--filter", default="", help="Only names that match: a glob such as '/shop/*', or a part."),
            click.option("--reverse", is_flag=True, help="The other way round."),
            click.option("--limit", type=click.IntRange(min=1), help="Show at most this many."),
            click.option("--after", default="", metavar="TOKEN", help="Go on after a page; it names the token."),
        ]
        if numbers:
            sorts = click.Choice(["name", *numbers])
            options.insert(1, click.option("--sort", type=sorts, default="name", help="By what; large numbers first."))
        decorated: Callable[..., None] = run
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
