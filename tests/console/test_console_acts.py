"""What the console changes: it says before what it will do, asks for the name, and shows the error of the broker."""

from __future__ import annotations

import pytest
from browsing import LETTERS, SUBSCRIPTION, TOPIC, Browser, act, text_of

from pydanube import testing
from pydanube.console.acts import ACTS

SEEK = act("seek", topic=TOPIC, subscription=SUBSCRIPTION)


async def test_a_seek_says_how_many_messages_come_again_and_does_it(browser: Browser) -> None:
    assert "About 3 of 12 messages will be delivered again." in await browser.get(SEEK)
    fields = {"topic": TOPIC, "subscription": SUBSCRIPTION, "position": "earliest"}
    assert "Done" in await browser.send(SEEK, typed=SUBSCRIPTION, **fields)
    assert "The subscription stands there already" in await browser.get(SEEK)


@pytest.mark.parametrize("name", [name for name, one in ACTS.items() if one.confirm and "topic" in one.about])
async def test_what_destroys_something_asks_for_its_name(browser: Browser, name: str) -> None:
    about = {"topic": TOPIC, "subscription": SUBSCRIPTION, "partition": "0"}
    given = {field: about[field] for field in ACTS[name].about} | {
        field.name: field.default for field in ACTS[name].fields
    }
    page = await browser.send(act(name, **given), 422, typed="something else", **given)
    assert "to confirm" in page
    assert TOPIC in await browser.get(f"/topics{TOPIC}")


async def test_a_topic_is_deleted(browser: Browser) -> None:
    page = text_of(await browser.get(act("delete-topic", topic=TOPIC)))
    assert "About 12 messages" in page
    await browser.send(act("delete-topic", topic=TOPIC), topic=TOPIC, typed=TOPIC)
    await browser.get(f"/topics{TOPIC}", 404)


async def test_dead_letters_go_back_to_where_they_came_from(browser: Browser) -> None:
    address = act("redrive", topic=LETTERS, partition="0", offset="", to="")
    assert f"1 to {TOPIC}." in await browser.get(address)
    assert "1 letters were sent back" in await browser.send(address, topic=LETTERS, partition="0", offset="", to="")
    assert "There is no dead letter" in await browser.get(f"/topics{LETTERS}/dead-letters")


async def test_a_message_is_published_and_shown(browser: Browser) -> None:
    fields = {"topic": TOPIC, "key": "table-9", "payload": '{"cups": 99}'}
    assert "It is stored in partition" in await browser.send(act("publish", topic=TOPIC), **fields)
    pages = [await browser.get(f"/topics{TOPIC}/messages?partition={one}&key=table-9") for one in range(2)]
    assert sum(page.count("<details") for page in pages) == 1


async def test_the_broker_says_what_is_wrong_beside_what_was_typed(browser: Browser) -> None:
    page = await browser.send(act("create-topic"), 400, topic="/default/a b", partitions="0", kind="reliable")
    assert 'value="/default/a b"' in page
    assert 'role="alert"' in page


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("create-topic", {"topic": "/default/new", "partitions": "many", "kind": "reliable"}),
        ("redrive", {"topic": LETTERS, "partition": "0", "offset": "x", "to": ""}),
        ("skip", {"topic": TOPIC, "subscription": SUBSCRIPTION, "partition": "0", "offset": "-1"}),
    ],
)
async def test_what_is_no_number_is_called_that(browser: Browser, name: str, fields: dict[str, str]) -> None:
    assert "is not a whole number" in await browser.send(act(name, **fields), 422, **fields)


async def test_a_form_of_another_page_is_not_carried_out(browser: Browser) -> None:
    await browser.send(act("delete-topic", topic=TOPIC), 403, token="guessed", topic=TOPIC, typed=TOPIC)
    assert TOPIC in await browser.get(f"/topics{TOPIC}")


async def test_nobody_sees_anything_without_signing_in(secured: tuple[Browser, testing.SecuredBroker]) -> None:
    browser, _ = secured
    for page in ("/", "/topics", f"/topics{TOPIC}", "/access", "/schemas", act("delete-topic", topic=TOPIC)):
        assert "API key or token" in await browser.get(page, 401)


async def test_a_person_sees_and_does_what_the_broker_allows(secured: tuple[Browser, testing.SecuredBroker]) -> None:
    browser, broker = secured
    async with broker.admin() as admin:
        await admin.create_topic("/default/mine")
        await admin.create_topic("/default/yours")
        key = await admin.access.create_key("user:anna")
        await admin.access.create_binding("user:anna", ["consumer"], "/default/mine")
    assert 'role="alert"' in await browser.send("/sign-in", 401, credential="wrong")
    assert "user:anna" in await browser.send("/sign-in", credential=key.secret)
    listed = await browser.get("/topics")
    assert "/default/mine" in listed
    assert "/default/yours" not in listed
    denied, unknown = [await browser.get(f"/topics/default/{name}", 403) for name in ("yours", "none")]
    assert denied.replace("yours", "none") == unknown
    page = await browser.send(
        act("delete-topic", topic="/default/mine"), 403, topic="/default/mine", typed="/default/mine"
    )
    assert 'role="alert"' in page
    await browser.send("/topics", to="/sign-out")
    assert "API key or token" in await browser.get("/topics", 401)
