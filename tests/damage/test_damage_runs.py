"""Damage to every kind of stored file: all is served, or an error names what is damaged, or the start is refused.

A run prints its seed. When something is wrong, it prints for each case the command that runs it again on the same
world. `DANUBE_SEED` chooses the seed, `DANUBE_DAMAGE_CASES` how many cases the long run has.
"""

import os
import random
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest
from damages import Case, Outcome, run_case, run_untouched
from stored_files import BY_NAME, classify
from world import SCENARIOS, prepare

REPLAY = Path(__file__).with_name("replay.py")
CASES = 10
"""Of each scenario, in the short run."""
SOAK_CASES = 540
CASES_PER_WORLD = 15

pytestmark = pytest.mark.process


class Run:
    """Cases on worlds of one scenario, and what came of them."""

    def __init__(self, scenario: str, path: Path, seed: int) -> None:
        print(f"{scenario}: DANUBE_SEED={seed}")
        self.scenario = SCENARIOS[scenario]
        self.path = path
        self.chance = random.Random(f"{seed} {scenario}")
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    async def run(self, count: int, commands: int) -> None:
        """Run `count` cases on one new world; the first `commands` refused starts are tried with `danube serve` too."""
        world = self.path / f"world-{len(list(self.path.glob('world-*')))}"
        await prepare(world, self.scenario, self.chance.randrange(2**32))
        untouched = await run_untouched(world, self.path / "case")
        assert untouched.verdict == "whole", f"the world itself is not whole: {untouched}"
        kinds = classify(world / "data")
        while count:
            case = Case.draw(world / "data", kinds, self.chance)
            outcome = await run_case(world, self.path / "case", case, with_command=commands > 0)
            if outcome is not None:
                count -= 1
                commands -= outcome.first.verdict == "refused"
                self._note(world, outcome)

    def _note(self, world: Path, outcome: Outcome) -> None:
        self.verdicts[outcome.kind.name, outcome.verdict] += 1
        if outcome.wrong:
            again = shlex.join([sys.executable, str(REPLAY), str(world), *str(outcome.case).split()])
            self.wrong.append(
                f"{outcome.kind.name}, {outcome.case}: {'; '.join(outcome.wrong)[:600]}\n    again: {again}"
            )

    def check(self) -> None:
        print(table(self.verdicts))
        wrong = "\n".join(self.wrong)
        assert not self.wrong, f"{len(self.wrong)} of {self.verdicts.total()} cases are wrong:\n{wrong}"


def table(verdicts: Counter[tuple[str, str]]) -> str:
    columns = ("whole", "named", "refused", "wrong")
    lines = [f"{'damaged file':<20}" + "".join(f"{one:>9}" for one in columns)]
    for kind in BY_NAME:
        counts = [verdicts[kind, one] for one in columns]
        if any(counts):
            lines.append(f"{kind:<20}" + "".join(f"{one:>9}" for one in counts))
    return "\n".join(lines)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_damage_is_served_around_named_or_refused(scenario: str, tmp_path: Path) -> None:
    run = Run(scenario, tmp_path, int(os.environ.get("DANUBE_SEED", "12")))
    await run.run(CASES, commands=1)
    run.check()


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_hundreds_of_damages_are_served_around_named_or_refused(scenario: str, tmp_path: Path) -> None:
    run = Run(scenario, tmp_path, int(os.environ.get("DANUBE_SEED", random.randrange(2**32))))
    left = -(-int(os.environ.get("DANUBE_DAMAGE_CASES", SOAK_CASES)) // len(SCENARIOS))
    while left > 0:
        await run.run(min(left, CASES_PER_WORLD), commands=3)
        left -= CASES_PER_WORLD
    run.check()


def test_a_stored_file_of_an_unknown_kind_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "NEWCOMER").touch()
    with pytest.raises(AssertionError, match="NEWCOMER is a stored file of no known kind"):
        classify(tmp_path)
