"""Child processes that never outlive whoever started them, also when the start itself is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from typing import Any


async def spawn(*command: str, **options: Any) -> Process:
    """Cancelled: the child that was on its way is gone too when this raises."""
    # Owned here: awaited on every path.
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, **options))  # noqa: TID251
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await end(await starting)
        raise


async def end(process: Process) -> int:
    """kill -9; the exit code. A child that went by itself has one too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return await process.wait()
