"""One page that is being made, for one person: what it asks REST, and what becomes of parts that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pydanube.runtime.clock import Clock

from . import words
from .rest import Away, Json, Refused, RestApi
from .sessions import Session

TEMPLATES: Final = Environment(
    loader=PackageLoader("pydanube.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= words.FILTERS


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page: what REST answered, or why there is nothing."""

    value: Json
    problem: str = ""


class View:
    """What the function of a page works with."""

    def __init__(
        self, request: Request, session: Session, rest: RestApi, clock: Clock, form: dict[str, str] | None = None
    ) -> None:
        self.request = request
        self.session = session
        self.rest = rest
        self.clock = clock
        self.form = form
        """What was sent, of a POST."""

    @property
    def topic(self) -> str:
        """The topic of the address."""
        return "/{namespace}/{topic}".format(**self.request.path_params)

    def path(self, name: str) -> str:
        """Return a parameter of the address."""
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def field(self, name: str) -> str:
        """Return a field of the form, empty if it has none of this name."""
        assert self.form is not None
        return self.form.get(name, "")

    async def parts(self, *asked: Awaitable[Json]) -> list[Part]:
        """Ask everything at once. A part that is refused or whose broker is away says so; the others stay. Raises
        Refused if the person has to sign in, and Away if nothing could be asked."""
        parts = await asyncio.gather(*map(_part, asked))
        if all(isinstance(part, Away) for part in parts):
            raise next(part for part in parts if isinstance(part, Away))
        return [Part(None, str(part)) if isinstance(part, Away) else part for part in parts]

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page of a template."""
        common = {
            "path": self.request.url.path,
            "here": self.request.url.path + (f"?{self.request.url.query}" if self.request.url.query else ""),
            "session": self.session,
            "now_us": self.clock.now_us(),
            "with_query": self.with_query,
        }
        return HTMLResponse(TEMPLATES.get_template(template).render(common | values), status)

    def with_query(self, **changes: object) -> str:
        """Return the address of this page with other parameters; None takes one away."""
        query = {**self.request.query_params, **changes}
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.request.url.path}?{urlencode(kept)}" if kept else self.request.url.path

    def go(self, path: str) -> Response:
        """Send the browser to another page after a POST."""
        return RedirectResponse(path, 303)


async def _part(asked: Awaitable[Json]) -> Part | Away:
    try:
        return Part(await asked)
    except Refused as refused:
        if refused.status == 401:
            raise
        return Part(None, str(refused))
    except Away as away:
        return away
