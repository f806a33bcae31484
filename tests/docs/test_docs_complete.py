"""What the pages list, they list whole: policies, statistics, requests, extras, ack levels, decisions, and so on."""

from __future__ import annotations

import re
import tomllib
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from served import ROOT

from pydanube.client.connection.observing import ClientMetrics
from pydanube.codec.native import requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.grpc.errors import STATUS as GRPC_STATUS
from pydanube.gateway.http.errors import STATUS
from pydanube.model import statistics
from pydanube.model.failure import Backoff, FailurePolicy, Poison
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.policies import DEFAULTS, FIELDS
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.spark import options, session_builder

DOCS = ROOT / "docs"
INTERNAL_EXTRAS = {"demo", "dev", "test"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by the words in code of their first cell."""
    rows: dict[str, list[str]] = {}
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                rows.setdefault(name, cells)
    return rows


def text_of(page: str, heading: str = "") -> list[str]:
    """The lines of a page, or of the section of a heading."""
    text = (DOCS / page).read_text()
    return (
        re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.M)[0].splitlines()
        if heading
        else text.splitlines()
    )


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


def test_every_number_of_a_client_is_listed() -> None:
    assert {one.name for one in fields(ClientMetrics)} <= set(rows_of("metrics.md"))


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
    for name, value in {**session_builder.SETTINGS, **session_builder.LOCAL_SETTINGS}.items():
        told = listed[name][1]
        assert f"`{value}`" in told or not told.startswith("`"), name


def test_every_column_of_the_spark_data_source_is_listed() -> None:
    assert set(options.COLUMNS) <= rows_of("spark/README.md").keys()


def test_the_documented_limit_of_ack_gaps_is_the_real_one() -> None:
    assert f"up to {ACKED_RANGES_MAX:,} gaps" in (DOCS / "concepts" / "subscriptions.md").read_text()


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_every_error_is_listed_with_its_http_status(kind: Any) -> None:
    assert re.match(rf"{STATUS[kind]}\b", rows_of("http.md")[kind.__name__][1])


@pytest.mark.parametrize("kind", GRPC_STATUS, ids=lambda kind: kind.__name__)
def test_every_error_is_listed_with_its_grpc_status(kind: Any) -> None:
    rows = rows_of("grpc.md")
    told = rows.get(kind.__name__) or ["", next(line for line in text_of("grpc.md") if "anything else" in line)]
    assert GRPC_STATUS[kind].name in told[1]


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("concepts/topics.md", "Ack levels"),
        ("operations.md", "Ack levels in operation"),
        ("cluster.md", "When a broker does not come back"),
    ],
)
def test_every_ack_level_has_a_row(page: str, heading: str) -> None:
    levels = {found[1] for line in text_of(page, heading) if (found := re.match(r"\| `(\w+)`", line))}
    assert levels == {str(level) for level in AckLevel}


def test_the_glossary_names_every_ack_level_and_every_subscription_type() -> None:
    lines = text_of("glossary.md")
    levels = next(line for line in lines if line.startswith("| [ack level]"))
    assert all(f"`{level}`" in levels for level in AckLevel)
    types = {one.strip() for line in lines if line.startswith("| exclusive, ") for one in line.split("|")[1].split(",")}
    assert types == {str(one) for one in SubscriptionType}


def test_the_extras_are_listed_with_what_they_install() -> None:
    extras = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name not in INTERNAL_EXTRAS}
    section = [line.strip("|").split(" | ") for line in text_of("index.md", "Extras") if line.startswith("| `")]
    listed = {cells[0].strip(" `"): set(cells[1].strip().split(", ")) for cells in section}
    assert listed == {name: {Requirement(text).name for text in texts} for name, texts in extras.items()}


def test_the_page_about_security_lists_the_dependencies() -> None:
    told = re.search(r"The broker and client need ([\w, ]+?),? and nothing", (ROOT / "SECURITY.md").read_text())
    assert told is not None
    needed = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert set(re.split(r", | and ", told[1])) == needed


def test_every_decision_is_listed_by_its_title() -> None:
    listed = re.findall(r"^\| \[(\d+)\]\((.+?)\) \| (.+?) \| (\w+)", (DOCS / "adr" / "README.md").read_text(), re.M)
    records = sorted((DOCS / "adr").glob("[0-9]*.md"))
    assert [name for _, name, _, _ in listed] == [path.name for path in records]
    for (number, _, title, status), path in zip(listed, records, strict=True):
        text = path.read_text()
        assert text.startswith(f"# {number} {title}\n"), path.name
        assert f"Status: {status}" in text, path.name


def test_the_start_page_leads_to_every_page() -> None:
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text())}
    stores = {
        (DOCS / "storage" / one).resolve()
        for one in re.findall(r"\]\((\w+\.md)", (DOCS / "storage/index.md").read_text())
    }
    pages = {path for path in DOCS.rglob("*.md") if "adr" not in path.parts and path.name != "index.md"}
    assert not {str(path.relative_to(DOCS)) for path in pages - linked - stores}


def test_the_readme_gives_the_figures_of_the_benchmarks() -> None:
    """In millions a second with one digit, and the latency in milliseconds with one."""
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1]
        for line in text_of("benchmarks.md", "Results")
        if " | " in line
    }
    batches, single, latency = (
        float(re.match(r"[\d,.]+", rows[name])[0].replace(",", ""))  # type: ignore[index]
        for name in (
            "100 B x 500, durable, as batches",
            "100 B x 500, durable, message by message with acks",
            "1,000/s one by one, durable: publish to ack, p50",
        )
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{batches / 1e6:.1f} million durable messages" in readme
    assert f"{single / 1e6:.1f} million when each" in readme
    assert f"in {latency:.1f} ms" in readme


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{one}" for one in ("index.md", "cluster.md", "operations.md"))]
)
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.M)) <= targets


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.[sp][vn]g")), ids=lambda path: path.name)
def test_pictures_are_small_and_move_without_a_script(picture: Path) -> None:
    content = picture.read_bytes()
    assert len(content) < 200_000
    assert b"<script" not in content and (b"@keyframes" in content or picture.suffix == ".png")
