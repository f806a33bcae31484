"""Runs one case of damage again, on a world that a failing run has kept, and shows what the judgement found.

python tests/damage/replay.py WORLD flip wal/wal-0000000002.log 4711 3
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "process")]

from damages import Case, run_case  # noqa: E402 - its place is known only now


async def main(world: str, *case: str) -> int:
    with tempfile.TemporaryDirectory(prefix="damage-") as scratch:
        outcome = await run_case(Path(world), Path(scratch) / "data", Case.parse(" ".join(case)), with_command=True)
    if outcome is None:
        print("the damage changes nothing")
        return 0
    print(f"{outcome.kind.name}: {outcome.verdict}")
    for judgement, name in ((outcome.first, "first start"), (outcome.second, "second start")):
        if judgement is not None:
            print(f"{name}: {judgement.verdict}")
            for text in [f"  named: {one}" for one in judgement.named] + [f"  WRONG: {one}" for one in judgement.wrong]:
                print(text)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
