"""Asks the REST API of a broker, by whichever of its addresses answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx2

BASE: Final = "/api/v1"
SECONDS_MAX: Final = 10.0
CONNECT_SECONDS_MAX: Final = 2.0

Json = Any
"""What REST answers; the templates know its names."""


class Refused(Exception):
    """The broker answered with an error, in its own words."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title


class Away(Exception):
    """No broker answered."""


class RestApi:
    """One person's way to the broker. Addresses are tried in turn, beginning with the one that answered last."""

    def __init__(self, http: httpx2.AsyncClient, urls: Sequence[str], token: str = "") -> None:
        self._http = http
        self._urls = list(urls)
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def signed_in(self, token: str) -> RestApi:
        """Return a way to the same brokers with these credentials."""
        return RestApi(self._http, self._urls, token)

    async def get(self, path: str, **query: str | int | bool | None) -> Json:
        """Return what REST answers; parameters that are None are left out. Raises Refused or Away."""
        return await self._ask("GET", path, None, {name: value for name, value in query.items() if value is not None})

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Ask for a change. It is tried at another address only if the first one was not reached."""
        return await self._ask(method, path, body, {})

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str | int | bool]
    ) -> Json:
        failures = []
        for url in list(self._urls):
            try:
                answer = await self._http.request(
                    method,
                    f"{url}{BASE}{path}",
                    params=query,
                    json=body,
                    headers=self._headers,
                )
            except httpx2.TransportError as error:
                failures.append(f"{url}: {str(error) or type(error).__name__}")
                self._urls.append(self._urls.pop(0))
                if method != "GET" and not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    break
                continue
            return _read(answer)
        raise Away("; ".join(failures))


def _read(answer: httpx2.Response) -> Json:
    try:
        value = answer.json() if answer.content else None
    except ValueError:
        raise Away(f"{answer.url.host} does not answer as a broker: HTTP {answer.status_code}") from None
    if answer.is_success:
        return value
    problem = value if isinstance(value, dict) else {}
    detail = problem.get("detail") or f"HTTP {answer.status_code}"
    if answer.status_code == 404 and not problem:
        detail = "this broker does not know the request; it may be older than the console"
    raise Refused(answer.status_code, problem.get("title", ""), detail)


def topic_path(topic: str, rest: str = "") -> str:
    """Return the path of a topic, or of something of it."""
    return f"/topics/{'/'.join(quote(part, safe='') for part in topic.strip('/').split('/'))}{rest}"


def subscription_path(topic: str, subscription: str, rest: str = "") -> str:
    return topic_path(topic, f"/subscriptions/{quote(subscription, safe='')}{rest}")
