"""How much time is left is guessed before the first test, and reckoned from what is done after some."""

from __future__ import annotations

from pathlib import Path

import pytest

from progress import SECONDS, seconds_left, usual_seconds

TESTS = Path(__file__).parent


def test_at_the_beginning_the_guess_is_told_and_one_test_changes_little() -> None:
    assert seconds_left(0, 0, 480) == 480
    assert seconds_left(0.0001, 5, 480) == pytest.approx(578, abs=1)


@pytest.mark.parametrize("guess", [1, 600, 3000])
def test_in_the_middle_what_was_measured_is_told_whatever_was_guessed(guess: float) -> None:
    assert seconds_left(0.5, 300, guess) == pytest.approx(300, rel=0.5)
    assert seconds_left(0.9, 540, guess) == pytest.approx(60, rel=0.3)
    assert seconds_left(1, 600, guess) == 0


@pytest.mark.parametrize("name", SECONDS)
def test_what_is_usual_is_known_of_what_there_is(name: str) -> None:
    assert (TESTS / name).exists()
    file = f"tests/{name}" if name.endswith(".py") else f"tests/{name}/test_some.py"
    assert usual_seconds(f"{file}::test_that[tests/spark::x]") == SECONDS[name]
