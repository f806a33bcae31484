"""The view of `danube top` at common terminal widths."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import subprocess
import sys
import termios
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pydanube.cli.topics.top_view import ORDERS, TopSnapshot, View, rows_of, short
from pydanube.cli.topics.totals import sum_topic
from pydanube.model.statistics import (
    ConsumerStatistics,
    PartitionStatistics,
    SubscriptionStatistics,
    SubscriptionSummary,
    TopicStatistics,
    TopicSummary,
)

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def consumers(count: int) -> list[ConsumerStatistics]:
    return [ConsumerStatistics(f"c{number}", unacked=5) for number in range(count)]


def topic(name: str, *subscriptions: SubscriptionStatistics, **figures) -> TopicStatistics:
    return TopicStatistics(name, True, [PartitionStatistics(0, subscriptions=list(subscriptions), **figures)])


KEEPS_UP = SubscriptionStatistics("billing", "shared", 9, backlog=0, messages_per_s=980.4, consumers=consumers(3))
LAGS = SubscriptionStatistics("audit", "failover", 9, backlog=1_234_567, backlog_s=4000, consumers=consumers(2))
ABANDONED = SubscriptionStatistics("forgotten", "exclusive", 9, backlog=70, backlog_s=30)
BLOCKED = SubscriptionStatistics("mail", "key-shared", 9, backlog=2, backlog_s=3, blocked=1, consumers=consumers(1))

TOPICS = [
    topic("/default/orders", KEEPS_UP, LAGS, messages_per_s=12_345.6, bytes_per_s=2e6, producers=2),
    topic("/default/a-topic-with-a-name-that-is-longer-than-most-screens-are-wide", ABANDONED),
    topic("/default/mails", BLOCKED, messages_per_s=0.4),
    topic("/default/quiet"),
]


def rendered(width: int, height: int | None = None, topics=TOPICS, **more) -> list[str]:
    snapshot = TopSnapshot(NOON, "node-1 0.1.0", [sum_topic(one) for one in topics], more.get("trouble", ""))
    return rendered_as(snapshot, width, height)


def rendered_as(snapshot: TopSnapshot, width: int = 120, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=width, height=height or 50, highlight=False)
    console.print(View(snapshot, "worst", "every 2s, q ends", height))
    return console.export_text().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_row_is_wrapped(width: int):
    lines = rendered(width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + 1 + 1 + 5


def test_a_summary_looks_like_the_statistics_that_it_sums_up():
    subscriptions = [
        SubscriptionSummary("billing", "shared", 3, messages_per_s=980.4),
        SubscriptionSummary("audit", "failover", 2, backlog=1_234_567, backlog_s=4000),
    ]
    told = TopicSummary(
        "/default/orders",
        True,
        "durable",
        partitions=0,
        created_at=0,
        open_partitions=1,
        messages_per_s=12_345.6,
        bytes_per_s=2e6,
        producers=2,
        subscriptions=subscriptions,
    )
    both = [rendered_as(TopSnapshot(NOON, "node-1 0.1.0", [one])) for one in (sum_topic(TOPICS[0]), told)]
    assert both[0] == both[1]
    (closed,) = rows_of([replace(told, open_partitions=0, subscriptions=[])], "worst")
    assert closed.note == "not open"


def test_the_worst_come_first():
    lines = rendered(120)[4:]
    assert [line.split()[1] for line in lines] == ["mail", "forgotten", "audit", "billing", "-"]
    assert "1 blocked" in lines[0]
    assert "no consumer" in lines[1]
    assert "1.2M" in lines[2]
    assert "1h 6m" in lines[2]


def test_the_numbers_are_whole_at_80_columns():
    audit = next(line for line in rendered(80) if "audit" in line)
    assert audit.split()[-6:] == ["12.3k", "0", "1.2M", "1h", "6m", "2"]


def test_what_is_wrong_is_told_at_80_columns():
    lines = rendered(80)[4:]
    assert lines[0].rstrip().endswith("1 blocked")
    assert lines[1].rstrip().endswith("no consumer")


def test_the_totals_are_over_all_topics():
    totals = rendered(120)[1]
    for told in (
        "4 topics",
        "in 12.3k/s (1.9 MiB/s)",
        "out 980/s",
        "backlog 1.2M",
        "2 prod",
        "6 cons",
    ):
        assert told in totals


def test_what_does_not_fit_is_counted():
    lines = rendered(80, height=7)
    assert len(lines) == 7
    assert lines[-1].strip() == "... 3 more"


def test_trouble_is_told_above_the_old_figures():
    assert "no broker answers" in rendered(80, trouble="no broker answers at 127.0.0.1:6655")[2]


def test_an_empty_cluster_says_so():
    assert "no topics yet" in "\n".join(rendered(80, topics=[]))


def test_names_from_outside_do_not_steer_the_terminal():
    lines = rendered(120, topics=[topic("/default/t", replace(KEEPS_UP, name="\x1b[2J"))])
    assert "\x1b" not in "".join(lines)
    assert "\\x1b[2J" in "".join(lines)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_shows_every_row(order: str):
    rows = rows_of([sum_topic(one) for one in TOPICS], order)
    assert len(rows) == 5
    if order == "name":
        assert [row.topic.topic for row in rows] == sorted(row.topic.topic for row in rows)


@given(st.floats(0, 1e15))
def test_numbers_are_short(value: float):
    assert len(short(value)) <= 5


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.04, "0"),
        (0.44, "0.4"),
        (950, "950"),
        (9_500, "9,500"),
        (12_345, "12.3k"),
        (999_999, "1.0M"),
        (4.56e9, "4.6G"),
    ],
)
def test_numbers_for_a_glance(value: float, shown: str):
    assert short(value) == shown


def test_partitions_are_added_up_and_the_oldest_counts():
    first = replace(LAGS, backlog=10, backlog_s=5.0, consumers=[ConsumerStatistics("a", unacked=1, active=False)])
    other = replace(LAGS, backlog=20, backlog_s=9.0, consumers=[ConsumerStatistics("a", unacked=2), *consumers(1)])
    partitions = [
        PartitionStatistics(1, 5, 30, subscriptions=[other], health="read-only"),
        PartitionStatistics(0, 0, 100, subscriptions=[first, BLOCKED]),
    ]
    figures = sum_topic(TopicStatistics("/default/t", True, partitions))
    assert [one.index for one in figures.partitions] == [0, 1]
    assert figures.messages == 125
    assert figures.total.health == "read-only"
    assert [one.name for one in figures.subscriptions] == ["audit", "mail"]
    audit = figures.subscription("audit")
    assert audit is not None
    assert (audit.backlog, audit.backlog_s, len(audit.consumers)) == (30, 9.0, 2)
    assert (audit.consumers[0].unacked, audit.consumers[0].active) == (3, True)


@pytest.mark.process
@pytest.mark.parametrize("key", [b"q", b"Q", b"\x03"])
def test_a_key_ends_the_live_view_and_the_terminal_is_as_it_was(served, key: bytes):
    ours, its = pty.openpty()
    before = termios.tcgetattr(its)
    process = subprocess.Popen(
        [sys.executable, "-m", "pydanube.cli", "top", "--url", served.url],
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        seen = b""
        while b"danube top" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, b"x" + key)
        assert process.wait(timeout=120) == 0
        assert termios.tcgetattr(its) == before
    finally:
        process.kill()
        os.close(ours)
        os.close(its)


def test_a_topic_without_partitions_yet_is_empty():
    assert sum_topic(TopicStatistics("/default/t", False)).subscriptions == []
