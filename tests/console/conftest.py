"""A broker with something in it, and the console as a browser without scripts sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from browsing import Browser, browser_of, fill

from pydanube import testing


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A browser of a console whose broker has a topic, a subscription, a dead letter and a schema."""
    async with (
        testing._server(None, {"topics_ack_level": "written"}) as server,
        browser_of([server.http_url]) as browser,
    ):
        await fill(server.url)
        yield browser


@pytest.fixture
async def secured() -> AsyncIterator[tuple[Browser, testing.SecuredBroker]]:
    """The same without anything in it, of a broker that asks for credentials."""
    overrides = {"auth_enabled": True, "topics_ack_level": "written"}
    async with testing._server(None, overrides) as server, browser_of([server.http_url]) as browser:
        yield browser, testing._with_admin_key(server)
