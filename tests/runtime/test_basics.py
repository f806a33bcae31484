"""Clock, chance, tasks and log events: small promises that everything else leans on."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from pydanube.model.errors import DanubeError, Refused, Unavailable
from pydanube.runtime import telemetry
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.randomness import identity, seeded
from pydanube.runtime.tasks import Tasks, outcome_of, run_together


async def test_the_system_clock_goes_forward() -> None:
    clock = SystemClock()
    wall, passed = clock.now_us(), clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() - passed >= 0.001
    assert clock.now_us() > wall > 1_700_000_000_000_000


async def test_a_manual_clock_wakes_sleepers_in_the_order_they_are_due() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
            group.create_task(sleeper(name, seconds))
        await asyncio.sleep(0)
        assert clock.sleeping == 3
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(2.5)
    assert woken == ["early", "middle", "late"]
    assert clock.sleeping == 0


async def test_a_cancelled_sleeper_leaves_nothing_behind() -> None:
    clock = ManualClock()
    task = asyncio.get_running_loop().create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert clock.sleeping == 0
    clock.advance(2.0)


def test_a_jump_of_the_wall_clock_moves_no_deadline() -> None:
    clock = ManualClock()
    before = clock.monotonic()
    clock.set_wall(5)
    assert (clock.now_us(), clock.monotonic()) == (5, before)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic()) == (1_500_005, before + 1.5)


def test_identities_differ_and_seeds_repeat() -> None:
    names = {identity() for _ in range(1_000)}
    assert len(names) == 1_000
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    assert seeded(7).random() == seeded(7).random()
    assert seeded().random() != seeded().random()


async def test_closing_cancels_and_awaits_every_task() -> None:
    cleaned: list[int] = []

    async def forever(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    tasks = Tasks()
    for number in range(3):
        tasks.spawn(forever(number), f"forever-{number}")
    await asyncio.sleep(0)
    await tasks.close()
    assert sorted(cleaned) == [0, 1, 2]
    assert len(tasks) == 0
    await tasks.close()


async def test_a_finished_task_is_let_go_and_its_result_is_there() -> None:
    async def answer() -> int:
        return 42

    async with Tasks() as tasks:
        assert await tasks.spawn(answer(), "answer") == 42
        await asyncio.sleep(0)
        assert len(tasks) == 0


async def test_a_crash_is_logged_at_once_and_raised_at_close(capsys: pytest.CaptureFixture[str]) -> None:
    async def crash() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    await asyncio.wait([tasks.spawn(crash(), "crashing")])
    await asyncio.sleep(0)
    logged = capsys.readouterr().err
    assert "task.crashed" in logged
    assert "task=crashing" in logged
    assert "ValueError: broken" in logged
    with pytest.raises(ValueError, match="broken"):
        await tasks.close()
    await tasks.close()


async def test_several_crashes_are_raised_together() -> None:
    async def crash(number: int) -> None:
        raise ValueError(str(number))

    tasks = Tasks()
    await asyncio.wait([tasks.spawn(crash(number), "crashing") for number in range(2)])
    with pytest.raises(ExceptionGroup) as raised:
        await tasks.close()
    assert [str(crash) for crash in raised.value.exceptions] == ["0", "1"]


async def test_an_owner_with_a_crash_handler_hears_of_it_and_close_is_quiet() -> None:
    heard: list[tuple[str, BaseException]] = []
    broken = OSError("broken")

    async def crash() -> None:
        raise broken

    tasks = Tasks(on_crash=lambda task, exception: heard.append((task.get_name(), exception)))
    tasks.spawn(crash(), "crashing")
    await asyncio.sleep(0)
    await tasks.close()
    assert heard == [("crashing", broken)]


async def test_nothing_starts_after_close() -> None:
    tasks = Tasks()
    await tasks.close()
    with pytest.raises(Unavailable, match="late"):
        tasks.spawn(asyncio.sleep(1), "late")


@pytest.fixture(autouse=True)
def _unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)  # pytest's own do not count


def test_an_event_is_one_line_of_fields_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry.get_logger("pydanube.storage.wal")
    telemetry.configure("info")
    log.info("segment.sealed", topic="/default/orders", bytes=64, note="two words")
    log.debug("segment.looked_at")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert " info     segment.sealed " in err
    assert err.endswith(" topic=/default/orders bytes=64 note='two words' logger=storage.wal\n")


def test_no_control_character_of_a_field_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.get_logger("x").warning("peer.refused", name="\x1b[2Jred\nfake.event", also={"k": "a\nb"})
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_events_can_be_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("debug", json=True)
    try:
        raise ValueError("broken")
    except ValueError:
        telemetry.get_logger("x").exception("thing.failed", size=3, path=ValueError)
    record = json.loads(capsys.readouterr().err)
    assert (record["event"], record["level"], record["size"], record["logger"]) == ("thing.failed", "error", 3, "x")
    assert "ValueError: broken" in record["exception"]


def test_a_guest_in_somebody_elses_program_shows_only_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry.get_logger("x")
    log.info("thing.happened")
    assert capsys.readouterr().err == ""
    log.warning("thing.worsened")
    assert "thing.worsened" in capsys.readouterr().err


def test_a_program_that_logs_gets_the_events_at_its_own_levels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    theirs = logging.getLogger("pydanube.client.x")
    monkeypatch.setattr(theirs, "handlers", [handler])
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda one: bool(one.handlers))
    theirs.setLevel(logging.INFO)
    log = telemetry.get_logger("pydanube.client.x")
    log.debug("thing.looked_at")
    log.info("thing.happened", topic="/default/orders", note="two\nlines")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("thing.failed")
    assert [(one.levelname, one.name, one.getMessage()) for one in records] == [
        ("INFO", "pydanube.client.x", "thing.happened topic=/default/orders note='two\\nlines'"),
        ("ERROR", "pydanube.client.x", "thing.failed"),
    ]
    assert records[1].exc_info is not None and records[1].exc_info[0] is ValueError
    telemetry.configure("info")
    log.info("thing.served")
    assert len(records) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "thing.served" in err


def test_a_closed_or_missing_stderr_breaks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for broken in (closed, None):
        monkeypatch.setattr(sys, "stderr", broken)
        telemetry.get_logger("x").warning("thing.worsened")


async def test_all_of_them_bring_their_results_in_order() -> None:
    async def late(result: int) -> int:
        for _ in range(5 - result):
            await asyncio.sleep(0)
        return result

    assert await run_together(late(result) for result in range(5)) == [0, 1, 2, 3, 4]
    assert await run_together([]) == []


async def test_the_first_failure_is_raised_as_it_is_and_ends_the_others() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("waited")

    async def fail(reason: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise Refused(reason)

    with pytest.raises(Refused, match="first"):
        await run_together([wait(), fail("second", 30), fail("first", 1)])
    assert ended == ["waited"]
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_a_failure_counts_more_than_a_task_that_somebody_cancelled_and_no_other_goes_unseen() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    async def fail() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        raise Refused("first")

    async def fail_when_ended() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Refused("while it was ended")

    with pytest.raises(Refused, match="first"):
        await run_together([cancel_itself(), fail_when_ended(), fail()])
    with pytest.raises(asyncio.CancelledError):
        await run_together([cancel_itself(), asyncio.sleep(0)])
    gc.collect()
    assert complaints == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are not eager before Python 3.12")
async def test_a_task_that_fails_before_it_ever_waited_ends_the_others_too() -> None:
    async def fail() -> None:
        raise Refused("no")

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    with pytest.raises(Refused, match="no"):
        await run_together([fail(), asyncio.Event().wait()])
    with pytest.raises(Refused, match="no"):
        await run_together([fail()])


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_is_heard_although_a_failure_comes_at_the_same_moment(turns: int) -> None:
    """In whichever turn of the loop it comes: before the failure, with it, or while the others are being ended."""
    before, refused, lingering = asyncio.all_tasks(), asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        await refused.wait()
        raise Refused("no")

    async def linger() -> None:
        lingering.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    async def try_again() -> None:
        for _ in range(100):
            with suppress(Refused):
                await run_together([fail(), linger()])

    task = asyncio.create_task(try_again())
    await lingering.wait()
    refused.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert asyncio.all_tasks() == before


async def test_a_task_that_swallowed_its_cancellation_is_cancelled_again_with_the_others() -> None:
    waiting = asyncio.Event()

    async def swallow_one() -> None:
        for swallowed in (asyncio.CancelledError, ()):
            with suppress(swallowed):
                waiting.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(run_together([swallow_one(), asyncio.sleep(60)]))
    for _ in range(2):
        await waiting.wait()
        waiting.clear()
        assert not task.done()
        task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()


@pytest.mark.parametrize("told", [7, None, Unavailable("away")])
async def test_an_outcome_is_what_the_callback_is_called_with_and_an_error_is_raised(told: int | Unavailable | None):
    loop = asyncio.get_running_loop()
    waiting = outcome_of(lambda done: loop.call_soon(done, told))
    if isinstance(told, Unavailable):
        with pytest.raises(Unavailable, match="away"):
            await waiting
    else:
        assert await waiting == told


async def test_an_outcome_after_the_wait_was_cancelled_is_dropped_and_a_failure_is_not_logged(
    caplog: pytest.LogCaptureFixture,
):
    callbacks: list[Callable[[int | DanubeError], None]] = []
    cancelled, forgotten = outcome_of(callbacks.append), outcome_of(callbacks.append)
    cancelled.cancel()
    for done in callbacks:
        done(Unavailable("away"))
    del forgotten
    gc.collect()
    assert caplog.messages == []
