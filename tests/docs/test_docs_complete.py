"""What the pages list, they list whole: policies, statistics, failure policies, requests, frames, and defaults."""

from __future__ import annotations

import re
import typing
from dataclasses import MISSING, fields
from typing import Any

import pytest
from served import ROOT

from pydanube.codec.native import requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.http.errors import STATUS
from pydanube.model import statistics
from pydanube.model.failure import Backoff, FailurePolicy, Poison
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.policies import DEFAULTS, FIELDS
from pydanube.spark import options, sessions

DOCS = ROOT / "docs"


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by the words in code of their first cell."""
    rows: dict[str, list[str]] = {}
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                rows.setdefault(name, cells)
    return rows


@pytest.mark.parametrize("name", FIELDS)
def test_every_policy_is_listed_with_its_default(name: str) -> None:
    default = rows_of("policies.md")[name][1]
    assert re.match(rf"{getattr(DEFAULTS, name):d}\b", default), default


@pytest.mark.parametrize(
    "kind",
    [
        statistics.TopicStatistics,
        statistics.PartitionStatistics,
        statistics.SubscriptionStatistics,
        statistics.ConsumerStatistics,
    ],
)
def test_every_figure_is_listed(kind: Any) -> None:
    section = (DOCS / "statistics.md").read_text().split(f"| `{kind.__name__}` |")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", section))
    assert {one.name for one in fields(kind)} <= listed


@pytest.mark.parametrize("one", fields(FailurePolicy), ids=lambda one: one.name)
def test_every_field_of_a_failure_policy_is_listed_with_its_default(one: Any) -> None:
    told = rows_of("concepts/failures.md")[one.name][1]
    assert one.default is not MISSING
    if isinstance(one.default, Backoff | Poison):
        assert f"`{type(one.default).__name__}.{one.default.name}`" in told
    else:
        assert told.startswith({None: "`None`", "": "none"}.get(one.default, str(one.default)))


def test_every_request_and_every_kind_of_frame_is_listed() -> None:
    rows = rows_of("protocol.md")
    ops = {cls.__struct_config__.tag: cls for cls in typing.get_args(requests.AnyRequest)}
    assert ops.keys() <= rows.keys()
    for op, kind in ops.items():
        listed = set(re.findall(r"`(\w+)`", rows[op][1])) if len(rows[op]) > 1 else set()
        assert set(kind.__struct_fields__) <= listed, op
    text = (DOCS / "protocol.md").read_text()
    assert all(re.search(rf"^\| {kind.name} \| {kind.value} \|", text, re.MULTILINE) for kind in FrameKind)


def test_every_option_of_the_spark_data_source_is_listed() -> None:
    listed = rows_of("spark/README.md")
    assert {*options.COMMON, *options.READING, *options.WRITING} <= listed.keys()


def test_every_setting_of_a_spark_session_is_listed_with_its_value() -> None:
    listed = rows_of("spark/README.md")
    for name, value in {**sessions.SETTINGS, **sessions.LOCAL_SETTINGS}.items():
        told = listed[name][1]
        assert f"`{value}`" in told or not told.startswith("`"), name


def test_every_column_of_the_spark_data_source_is_listed() -> None:
    assert set(options.COLUMNS) <= rows_of("spark/README.md").keys()


def test_the_documented_limit_of_ack_gaps_is_the_real_one() -> None:
    assert f"up to {ACKED_RANGES_MAX:,} gaps" in (DOCS / "concepts" / "subscriptions.md").read_text()


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_every_error_is_listed_with_its_http_status(kind: Any) -> None:
    assert re.match(rf"{STATUS[kind]}\b", rows_of("http.md")[kind.__name__][1])
