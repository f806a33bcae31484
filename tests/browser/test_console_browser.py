"""The console in Chromium, on a broker under load: every page is opened, used, looked at by axe, and photographed.

`make test-browser` runs it. The pictures are in build/browser.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

import pydanube
from pydanube import testing
from pydanube.console.pages import PAGES

PICTURES = Path("build/browser")
AXE = Path(os.environ.get("DANUBE_AXE", "")) / "axe.min.js"
TOPIC = "/default/orders"
SCRIPT = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
PLACES = {"namespace": "default", "topic": "orders", "subscription": "billing", "subject": "orders-value"}
SERIOUS = {"serious", "critical"}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A console whose broker has hostile names and payloads, and a producer that goes on."""
    with testing._server_thread(None, {"topics_ack_level": "written"}) as server:
        stop = threading.Event()
        with pydanube.connect_blocking(server.url) as client:
            client.create_topic(TOPIC, partitions=2)
            client.create_subscription(TOPIC, "billing", type="shared", start="earliest")
            client.schemas.register("orders-value", '{"type": "object"}', format="json")
            client.schemas.register("orders-value", '{"type": "object", "description": "second"}', format="json")
            with client.producer(TOPIC, name=SCRIPT) as producer:
                producer.send(SCRIPT.encode(), key=SCRIPT, attributes={SCRIPT[:40]: SCRIPT})
                producer.send("\u202egnirts desrever".encode())
                producer.send(b"\xff\x00" * 50)
                producer.send(b"x" * 9_000_000)
        feed = threading.Thread(target=_publish, args=(server.url, stop))
        feed.start()
        command = [sys.executable, "-m", "pydanube.cli", "console", "--port=0", "--url", server.http_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
            assert console.stdout is not None
            try:
                yield console.stdout.readline().removeprefix("danube console ").strip()
            finally:
                console.terminate()
                stop.set()
                feed.join()


def _publish(url: str, stop: threading.Event) -> None:
    with pydanube.connect_blocking(url) as client, client.producer(TOPIC) as producer:
        while not stop.wait(0.05):
            producer.send_many([b'{"drink": "tea", "cups": 1}'] * 50)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "there is no chromium on the PATH: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["desktop", "phone"])
def page(chromium: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that fails the test if the browser refuses or reports anything."""
    size = {"desktop": (1280, 800), "phone": (390, 844)}[request.param]
    context = chromium.new_context(
        base_url=address, viewport={"width": size[0], "height": size[1]}, bypass_csp=False, color_scheme="light"
    )
    page = context.new_page()
    wrong: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(address) else wrong.append(f"asked {asked.url}"))
    yield page
    context.close()
    assert not wrong


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_and_runs_nothing_foreign(page: Page, path: str, request: pytest.FixtureRequest) -> None:
    page.goto(path.format(**PLACES))
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"] + 1
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{request.node.callspec.id.replace('/', '_')}.png", full_page=True)
    assert page.title() != "run"
    if AXE.exists():
        axe = page.context.new_cdp_session(page)  # past the policy, which allows no foreign script
        axe.send("Runtime.evaluate", {"expression": AXE.read_text()})
        found = axe.send(
            "Runtime.evaluate",
            {"expression": "axe.run().then(found => found.violations)", "awaitPromise": True, "returnByValue": True},
        )
        assert [one for one in found["result"]["value"] if one["impact"] in SERIOUS] == []


def test_rates_are_drawn_and_go_on(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".chart canvas")).to_have_count(2)
    first = page.locator("#sample").get_attribute("data-messages")
    expect(page.locator("#sample")).not_to_have_attribute("data-messages", first or "")


def test_a_filter_works_as_one_types(page: Page) -> None:
    page.goto("/topics")
    page.get_by_role("searchbox").press_sequentially("nothing-of-this")
    expect(page.get_by_text("No topic matches.")).to_be_visible()
    assert "filter=nothing-of-this" in page.url


def test_new_messages_come_by_themselves(page: Page) -> None:
    page.goto(f"/topics{TOPIC}/messages?partition=0&live=1")
    first = page.locator("details.message summary code").first
    before = first.inner_text()
    expect(first).not_to_have_text(before)


def test_a_message_opens_and_a_subscription_moves_with_the_keyboard_alone(page: Page) -> None:
    page.goto(f"/topics{TOPIC}/messages?partition=0&start=0")
    page.locator("details.message summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("details.message[open] dl").first).to_be_visible()
    page.goto(f"/acts/seek?topic={TOPIC}&subscription=billing&position=latest")
    page.locator("input[name=position]").fill("earliest")
    expect(page.locator("#foretold")).to_contain_text("stands there already")
    page.locator("input[name=typed]").fill("billing")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
