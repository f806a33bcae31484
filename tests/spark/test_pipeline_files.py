"""Pipeline files are read, checked, and refused with the place of every problem, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_cases import Case, cases, problems_of


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_wrong_file_is_refused_with_place_and_remedy(case: Case, tmp_path: Path) -> None:
    assert problems_of(case.text, tmp_path) == case.expected
    assert case.expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\0b\n", "1:8: this is not YAML: the character U+0000 cannot be printed: leave it out"),
        (
            "name: a\ncheckpoint: \x1b[31m\n",
            "2:13: this is not YAML: the character U+001B cannot be printed: leave it out",
        ),
    ],
)
def test_control_characters_are_refused_with_their_place(text: str, said: str, tmp_path: Path) -> None:
    assert problems_of(text, tmp_path) == [said]


def test_a_module_that_calls_exit_is_a_problem_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "script_that_exits.py").write_text("import sys\nsys.exit(7)\n")
    text = """name: orders
checkpoint: checkpoint
sources: {orders: {topic: /default/orders}}
transforms: {same: {function: "script_that_exits:same", inputs: [orders]}}
sinks: {copy: {from: same, format: noop}}
"""
    said = "4:32: the module 'script_that_exits' cannot be imported: SystemExit: 7"
    assert problems_of(text, tmp_path) == [said]
