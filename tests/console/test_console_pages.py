"""The pages of the console on a real broker: what they show, what they never run, and what they do when it is away."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from browsing import LETTERS, SCRIPT, SUBJECT, SUBSCRIPTION, TOPIC, Browser, browser_of, text_of

from pydanube import console, testing
from pydanube.console.pages import PAGES

STATIC = Path(console.__file__).parent / "static"
PLACES = {"namespace": "default", "topic": "orders", "subscription": SUBSCRIPTION, "subject": SUBJECT}


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_shows_what_the_broker_has_and_no_text_of_others_as_a_tag(browser: Browser, page: str) -> None:
    found = await browser.get(page.format(**PLACES))
    assert "<h1>" in found
    assert SCRIPT not in found
    assert not re.search(r"<script(?! defer src=\"/static/)|style=|\son\w+=", found)


async def test_the_overview_says_in_a_sentence_whether_all_is_well(browser: Browser) -> None:
    found = text_of(await browser.get("/"))
    assert "All is well" in found
    assert f"{SUBSCRIPTION} {TOPIC} 9" in found


async def test_topics_are_found_by_a_part_of_their_name(browser: Browser) -> None:
    assert LETTERS in await browser.get("/topics?filter=dlq")
    assert LETTERS not in await browser.get("/topics?filter=nothing-of-this")


async def test_messages_are_found_by_text_and_the_page_says_which_range_it_has_looked_at(browser: Browser) -> None:
    pages = [text_of(await browser.get(f"{PATH}/messages?partition={one}&start=0&text=cups")) for one in range(2)]
    assert sum(page.count('{ "cups"') for page in pages) // 2 == 10  # in the line and below it
    assert all(re.search(r"\d+ messages? of offsets 0 to (\d+); the partition ends at \1\.", page) for page in pages)


async def test_messages_are_found_by_key(browser: Browser) -> None:
    pages = [await browser.get(f"{PATH}/messages?partition={one}&start=earliest&key=table-1") for one in range(2)]
    assert sum(page.count("<details") for page in pages) == 3


async def test_a_search_stops_and_goes_on_where_it_stopped(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.console.messages.SEARCHED_MAX", 2)
    monkeypatch.setattr("pydanube.console.messages.SEARCH_AT_ONCE", 2)
    seen, address, cups = 0, f"{PATH}/messages?partition=1&start=0&text=cups", 0
    while address:
        page = await browser.get(address)
        cups += page.count("<details")
        onward = re.search(r'<a href="([^"]+)">Search on</a>', page)
        address = onward[1].replace("&amp;", "&") if onward else ""
        seen += 1
    whole = await browser.get(f"{PATH}/messages?partition=1&start=0")
    assert seen > 1
    assert cups == whole.count("cups&#34;: ") // 2


async def test_characters_that_turn_text_around_and_bytes_that_are_no_text_are_written_out(browser: Browser) -> None:
    pages = " ".join([await browser.get(f"{PATH}/messages?partition={one}&start=0") for one in range(2)])
    assert "\u202e" not in pages
    assert r"\u202e dlrow" in pages
    assert "base64: /wD+" in pages


async def test_dead_letters_are_grouped_by_their_reason(browser: Browser) -> None:
    page = text_of(await browser.get(f"/topics{LETTERS}/dead-letters"))
    assert f"1 no such cup {SCRIPT} {SUBSCRIPTION} {TOPIC}" in page


async def test_an_unknown_topic_gets_the_words_of_the_broker(browser: Browser) -> None:
    assert "does not exist: create it with" in await browser.get("/topics/default/none", 404)


@pytest.mark.parametrize("path", ["/", "/static/console.js", "/nowhere", "/topics/default/none"])
async def test_every_answer_forbids_foreign_scripts_and_frames(browser: Browser, path: str) -> None:
    headers = await browser.headers(path)
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'self'", "frame-ancestors 'none'", "form-action 'self'"} <= set(policy)
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_foreign_host_name_gets_nothing(browser: Browser) -> None:
    assert "Danube" not in await browser.get("/", 400, host="evil.example")


async def test_a_broker_that_is_away_shows_as_that_and_the_page_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with testing._server(tmp_path / "data", {}) as server:
        url = server.http_url
    async with browser_of([url]) as browser:
        assert "No broker answers" in await browser.get("/topics", 503)
        async with testing._server(tmp_path / "data", {"server_http_port": int(url.rsplit(":", 1)[1])}):
            assert "There is no topic" in await browser.get("/topics")


async def test_another_broker_is_asked_when_one_does_not_answer() -> None:
    async with testing._server(None, {}) as server, browser_of(["http://127.0.0.1:1", server.http_url]) as browser:
        assert "All is well" in await browser.get("/")


def test_what_was_taken_from_others_is_what_its_list_says() -> None:
    listed = dict(re.findall(r"^\| `(.+?)` .*\| `([0-9a-f]{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.M))
    others = {path.name for path in STATIC.iterdir()} - {"VENDORED.md", "console.css", "console.js", "icon.svg"}
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in others} == listed


PATH = f"/topics{TOPIC}"
