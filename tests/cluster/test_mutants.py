"""Each mutant of ADR 0014, 0015 and 0021 is caught by the test that is named for it. `make soak-cluster` runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutants import RECORDS, ROOT, Mutant, run_test

each = pytest.mark.parametrize(
    "mutant", [one for mutants in RECORDS.values() for one in mutants], ids=lambda mutant: mutant.name
)


@each
def test_a_mutant_changes_the_code_that_there_is(mutant: Mutant) -> None:
    assert mutant.source().count(mutant.old) == 1
    path, _, name = mutant.test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("record", RECORDS)
def test_the_decision_record_lists_every_mutant_with_its_test(record: str) -> None:
    text = (ROOT / "docs" / "adr" / record).read_text()
    for mutant in RECORDS[record]:
        assert f"| {mutant.name} | `{mutant.test.partition('::')[2]}` |" in text


@pytest.mark.etcd
@pytest.mark.soak
@each
def test_a_mutant_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    whole = run_test(ROOT / "src", mutant.test, tmp_path / "whole")
    assert whole.returncode == 0, whole.stdout
    mutant.write(tmp_path / "mutant")
    caught = run_test(tmp_path / "mutant", mutant.test, tmp_path / "caught")
    assert caught.returncode == 1, f"nothing failed:\n{caught.stdout}{caught.stderr}"
    assert "1 failed" in caught.stdout or "FAILED" in caught.stdout
