import base64
import json
import random
from itertools import pairwise

import pytest

from pydanube.model.errors import Invalid
from pydanube.model.paging import (
    FILTER_CHARACTERS_MAX,
    PAGE_MAX,
    TOPIC_NUMBERS,
    NamePage,
    Order,
    PageQuery,
    TopicPage,
    page_of_names,
)
from pydanube.model.statistics import TopicSummary


def pages(names: list[str], **query: object) -> list[NamePage]:
    found = [page_of_names(names, PageQuery(**query))]
    while found[-1].next:
        found.append(page_of_names(names, PageQuery(**query, after=found[-1].next)))
    return found


@pytest.mark.parametrize("sort", ["name", "-name"])
def test_the_pages_together_are_the_list(sort: str) -> None:
    names = [f"n{number:02}" for number in range(10)]
    found = pages(names, sort=sort, limit=3)
    assert [len(one.names) for one in found] == [3, 3, 3, 1]
    assert [name for one in found for name in one.names] == sorted(names, reverse=sort == "-name")
    assert pages(names, limit=10)[-1].next == "", "a full page at the end has no next"


@pytest.mark.parametrize("seed", range(20))
def test_what_stays_is_listed_once_whatever_comes_and_goes_between_the_pages(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    kept = {f"k{rng.randrange(1000):03}" for _ in range(40)}
    names, listed, after = set(kept), list[str](), ""
    sort = rng.choice(["name", "-name"])
    while True:
        page = page_of_names(sorted(names), PageQuery(sort=sort, limit=rng.randrange(1, 8), after=after))
        listed += page.names
        if not page.next:
            break
        after = page.next
        names = kept | {f"x{rng.randrange(1000):03}" for _ in range(10)} | {f"a{rng.randrange(1000):03}"}
    assert kept <= set(listed)
    assert all((one < other) == (sort == "name") and one != other for one, other in pairwise(listed))


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("", ["/a/orders", "/a/orders-dlq", "/b/Orders.v1"]),
        ("orders", ["/a/orders", "/a/orders-dlq"]),
        ("/a/", ["/a/orders", "/a/orders-dlq"]),
        ("/a/*", ["/a/orders", "/a/orders-dlq"]),
        ("*orders", ["/a/orders"]),
        ("/?/[oO]rders*", ["/a/orders", "/a/orders-dlq", "/b/Orders.v1"]),
        (".v", ["/b/Orders.v1"]),
        ("orders*", []),
        ("[", []),
    ],
)
def test_a_filter_is_a_glob_of_the_whole_name_or_a_part_of_it(pattern: str, matching: list[str]) -> None:
    names = ["/a/orders", "/a/orders-dlq", "/b/Orders.v1"]
    assert page_of_names(names, PageQuery(filter=pattern)).names == matching


def test_no_filter_takes_long() -> None:
    matches = PageQuery(filter="*a" * (FILTER_CHARACTERS_MAX // 2)).matcher()
    assert not matches("a" * 400 + "b")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": PAGE_MAX + 1},
        {"limit": True},
        {"limit": "5"},
        {"filter": "x" * (FILTER_CHARACTERS_MAX + 1)},
        {"filter": None},
    ],
)
def test_a_query_out_of_range_is_refused(query: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        PageQuery(**query)


@pytest.mark.parametrize("sort", ["", "-", "size", "--name", "topic", "subscriptions"])
def test_an_unknown_order_is_refused_with_those_that_exist(sort: str) -> None:
    with pytest.raises(Invalid, match=r"is unknown: use name, created_at, .*backlog"):
        PageQuery(sort=sort).order(TOPIC_NUMBERS)


def test_topics_can_be_sorted_by_the_numbers_that_a_summary_has() -> None:
    summary = TopicSummary("/default/orders", True, "durable", 0, 0)
    assert all(isinstance(getattr(summary, name), int | float) for name in TOPIC_NUMBERS)


def test_a_token_has_the_text_it_had_when_it_was_released() -> None:
    assert Order("name", False).token(0, "/default/a") == "WyJuYW1lIixmYWxzZSwwLCIvZGVmYXVsdC9hIl0"
    assert Order("backlog_s", True).token(1.5, "/default/a") == "WyJiYWNrbG9nX3MiLHRydWUsMS41LCIvZGVmYXVsdC9hIl0"
    last = TopicSummary("/default/a", True, "durable", 0, 0, published=2**62)
    page = TopicPage.of([last], Order("published", True), more=True)
    assert Order("published", True).parse_token(page.next) == (2**62, "/default/a")
    assert TopicPage.of([last], Order("published", True), more=False).next == ""


def _token(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "/default/a",
        "ä",
        "%%%",
        "WyJ",
        _token([]),
        _token({}),
        _token(["name", False, 0]),
        _token(["name", False, 0, 7]),
        _token(["name", False, None, "a"]),
        _token(["name", False, float("nan"), "a"]),
        _token(["name", False, float("inf"), "a"]),
        _token(["name", False, 10**400, "a"]),
        _token(["name", True, 0, "a"]),
        _token(["published", False, 0, "a"]),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
)
def test_a_token_that_no_page_of_this_order_returned_is_refused(token: str) -> None:
    with pytest.raises(Invalid, match="page token"):
        Order("name", False).parse_token(token)
