"""Threads of a store: calls side by side up to a limit, and an end that a call which hangs cannot hold up."""

import asyncio
import subprocess
import sys
import threading

import pytest

from pydanube.model.errors import Unavailable
from pydanube.runtime.objects.threads import Threads
from waiting import until


async def test_calls_run_side_by_side_up_to_the_limit_and_all_are_answered():
    threads = Threads(3, "test://")
    running, most, lock = 0, 0, threading.Lock()
    gate = threading.Semaphore(0)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if most == 3:
                gate.release(3)
        gate.acquire(timeout=1)
        with lock:
            running -= 1
        return number

    answers = await asyncio.gather(*(threads.run(lambda n=n: work(n)) for n in range(10)))
    assert answers == list(range(10))
    assert most == 3
    await threads.close()


async def test_a_mistake_reaches_whoever_called_and_the_thread_works_on():
    threads = Threads(1, "test://")
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 2) == 2
    await threads.close()
    with pytest.raises(Unavailable, match="is closed"):
        await threads.run(lambda: 3)
    await threads.close()


async def test_what_is_cancelled_before_it_began_never_begins():
    threads, begun, gate = Threads(1, "test://"), [], threading.Event()
    first = asyncio.create_task(threads.run(gate.wait))
    second = asyncio.create_task(threads.run(lambda: begun.append(2)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    gate.set()
    assert await first
    assert await threads.run(lambda: 3) == 3
    assert begun == []
    await threads.close()


async def test_closing_waits_for_a_call_that_hangs_for_a_while_only(monkeypatch):
    monkeypatch.setattr("pydanube.runtime.objects.threads.CLOSE_S", 0.2)
    threads, begun, gate = Threads(1, "test://"), threading.Event(), threading.Event()
    hanging = asyncio.create_task(threads.run(lambda: begun.set() or gate.wait()))
    waiting = asyncio.create_task(threads.run(lambda: 1))
    await until(begun.is_set)
    async with asyncio.timeout(60):
        await threads.close()
    with pytest.raises(Unavailable):
        await waiting
    gate.set()
    assert await hanging


def test_a_process_ends_although_a_call_hangs():
    program = """
import asyncio, threading
from pydanube.runtime.objects import threads
threads.CLOSE_S = 0.2
async def main():
    mine = threads.Threads(1, "test://")
    hanging = asyncio.create_task(mine.run(threading.Event().wait))
    await asyncio.sleep(0.05)
    await mine.close()
    hanging.cancel()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
