"""Damage to every kind of stored file: all is served, or an error names what is damaged, or the start is refused.

A run prints its seed. When something is wrong, it prints for each case the command that runs it again on the same
world. `DANUBE_SEED` chooses the seed, `DANUBE_DAMAGE_CASES` how many cases the long run has.
"""

import os
import random
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from damages import Case, Outcome, run_case, run_untouched
from expected import Expected, ExpectedSubscription, ExpectedTopic
from oracle import judge
from stored_files import BY_NAME, classify
from world import SCENARIOS, prepare

from exhaustive import several

REPLAY = Path(__file__).with_name("replay.py")
CASES = several(3, 10)
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


@pytest.mark.parametrize(
    "scenario",
    [
        one if one in ("plain-kill", "tiered-stop") else pytest.param(one, marks=pytest.mark.exhaustive)
        for one in SCENARIOS
    ],
)
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


def _lose_a_message(expected: Expected) -> None:
    topic = expected.topics["/default/plain"]
    topic.add(0, topic.end(0), "never arrived")


def _change_a_message(expected: Expected) -> None:
    expected.topics["/default/parts"].acked[1][0] = "something else"


def _lose_a_topic(expected: Expected) -> None:
    expected.topics["/default/lost"] = ExpectedTopic(0, True, "durable")


def _bring_back_a_topic(expected: Expected) -> None:
    del expected.topics["/default/remade"]


def _lose_a_subscription(expected: Expected) -> None:
    expected.topics["/default/written"].subscriptions["lost"] = ExpectedSubscription("shared", "")


def _lose_an_ack(expected: Expected) -> None:
    topic = expected.topics["/default/plain"]
    topic.subscriptions["audit"].settled[0] = sorted(topic.acked[0])


def _skip_a_message(expected: Expected) -> None:
    expected.topics["/default/plain"].subscriptions["shared"].settled[0].pop()


def _lose_a_policy(expected: Expected) -> None:
    expected.topics["/billing/invoices"].policies["retention_bytes"] = 1 << 30


def _forget_a_producer(expected: Expected) -> None:
    expected.identities[0].offset += 1


def _forget_a_commit(expected: Expected) -> None:
    expected.stages[-1].committed = True


def _lose_a_lease(expected: Expected) -> None:
    expected.leases[99] = "/sessions/lost"


async def test_the_oracle_notices_whatever_is_missing_changed_repeated_or_moved(tmp_path: Path) -> None:
    """The world is whole; what is expected of it is not."""
    expected = await prepare(tmp_path, SCENARIOS["plain-stop"], 7)
    for mistake in (
        _lose_a_message,
        _change_a_message,
        _lose_a_topic,
        _bring_back_a_topic,
        _lose_a_subscription,
        _lose_an_ack,
        _skip_a_message,
        _lose_a_policy,
        _forget_a_producer,
        _forget_a_commit,
        _lose_a_lease,
    ):
        shutil.copytree(tmp_path / "data", tmp_path / mistake.__name__)
        mistaken = expected.copy()
        mistake(mistaken)
        judgement = await judge(tmp_path / mistake.__name__, mistaken)
        assert judgement.verdict == "wrong", mistake.__name__


def test_a_case_can_be_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "IDENTITY").write_bytes(bytes(range(200)))
    chance = random.Random(1)
    cases = [Case.draw(tmp_path, classify(tmp_path), chance) for _ in range(50)]
    assert [Case.parse(str(case)) for case in cases] == cases
    assert len({case.damage for case in cases}) == 6


def test_a_stored_file_of_an_unknown_kind_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "NEWCOMER").touch()
    with pytest.raises(AssertionError, match="NEWCOMER is a stored file of no known kind"):
        classify(tmp_path)
