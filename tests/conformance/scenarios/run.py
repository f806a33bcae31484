"""Runs one scenario in the environment of the official client: `run.py MODULE.FUNCTION URL ARGUMENTS`.

Every line on stdout is JSON: {"step": ..., "value": ...} while it runs, {"result": ...} at the end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

from danube import DanubeClientBuilder

TIMEOUT_S = 3500.0  # for a scenario whose test was killed; pytest ends the others


class Steps:
    """How a scenario and its test wait for each other."""

    def reached(self, step: str, value: Any = None) -> None:
        """Tell the test that the scenario has reached this step."""
        print(json.dumps({"step": step, "value": value}), flush=True)

    async def told(self, word: str) -> None:
        """Wait until the test says this word."""
        line = await asyncio.to_thread(sys.stdin.readline)
        if line.strip() != word:
            raise RuntimeError(f"the test said {line!r} instead of {word!r}")


# The client logs a line for every attempt to reach a broker that is not there.
logging.getLogger("danube").setLevel(logging.ERROR)


async def main(name: str, url: str, arguments: str) -> None:
    module, _, function = name.rpartition(".")
    scenario = getattr(importlib.import_module(module), function)
    async with asyncio.timeout(TIMEOUT_S):
        given = json.loads(arguments)
        builder = DanubeClientBuilder().service_url(url)
        if files := given.pop("tls", []):
            builder = builder.with_tls(*files) if len(files) == 1 else builder.with_mtls(*files)
        if token := given.pop("token", ""):
            builder = builder.with_token(token)
            builder._options.use_tls = url.startswith("https:")  # it would encrypt whatever the URL says
        if supplied := given.pop("token_file", ""):
            builder = builder.with_token_supplier(lambda: Path(supplied).read_text())
        client = await builder.build()
        result = await scenario(client, Steps(), **given)
    print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
