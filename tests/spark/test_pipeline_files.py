"""Pipeline files are read, checked, and refused with the place of every problem, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_cases import Case, cases, problems_of


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_wrong_file_is_refused_with_place_and_remedy(case: Case, tmp_path: Path) -> None:
    assert problems_of(case.text, tmp_path) == case.expected
    assert case.expected
