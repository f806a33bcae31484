"""Mutants of the code that keeps brokers from harming each other, each with the test that catches it.

A mutant is a copy of `src` in which one piece of text is replaced. ADR 0014 lists those of several brokers, ADR 0015
those of the ack level `stored`, ADR 0021 those of moves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    path: str
    """Of the changed module, below src/pydanube."""
    old: str
    """Occurs once."""
    new: str
    test: str
    """The test that fails, as pytest names it."""

    def source(self) -> str:
        return (ROOT / "src" / "pydanube" / self.path).read_text()

    def write(self, directory: Path) -> None:
        """Write a copy of `src` with the change into an empty directory."""
        shutil.copytree(ROOT / "src", directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        changed = self.source().replace(self.old, self.new)
        (directory / "pydanube" / self.path).write_text(changed)


MUTANTS = [
    Mutant(
        "a taker that does not compare the former owner's session",
        "broker/partitions/ownership.py",
        "            *await self._former_session_is_over(former, session),\n",
        "",
        "tests/broker/test_owning.py::test_a_partition_is_not_taken_from_a_broker_that_lives",
    ),
    Mutant(
        "a taker that reads that session, and does not compare it",
        "broker/partitions/ownership.py",
        "        return over\n\n    async def _check_log",
        "        return []\n\n    async def _check_log",
        "tests/broker/test_owning.py"
        "::test_a_taker_that_was_told_too_early_that_the_former_session_is_over_takes_nothing",
    ),
    Mutant(
        "a taker that does not compare its own session",
        "broker/partitions/ownership.py",
        "            *self._membership.alive(),\n            *await",
        "            *await",
        "tests/broker/test_owning.py::test_a_taker_whose_own_session_ends_before_it_writes_takes_nothing",
    ),
    Mutant(
        "no deadline",
        "broker/cluster/cluster_membership.py",
        "        return self._boot_time() < self._deadline\n",
        "        return True\n",
        "tests/broker/test_cluster_membership.py"
        "::test_a_broker_that_is_cut_off_stops_before_the_others_see_its_session_end",
    ),
    Mutant(
        "the deadline counted from the answer",
        "broker/cluster/cluster_membership.py",
        "            self._deadline = holds_until(asked, ttl_ms)\n",
        "            self._deadline = holds_until(self._boot_time(), ttl_ms)\n",
        "tests/broker/test_cluster_membership.py::test_the_time_counts_from_before_the_store_was_asked",
    ),
    Mutant(
        "a compacted watch resumed at the newest revision",
        "metadata/following.py",
        "            await self.start()\n            return revision",
        "            return revision",
        "tests/metadata/test_following.py::test_after_compaction_everything_is_listed_again_and_nothing_is_lost",
    ),
    Mutant(
        "a ledger of another log dropped as empty",
        "broker/partitions/ownership.py",
        "            if not self._membership.is_own_log(ledger.log):\n",
        "            if False:\n",
        "tests/broker/test_owning.py::test_a_ledger_of_another_log_is_never_taken_for_an_empty_one",
    ),
    Mutant(
        "a partition taken although its log is another broker's",
        "broker/partitions/ownership.py",
        "            if not self._membership.is_own_log(former.log):\n",
        "            if False:\n",
        "tests/broker/test_owning.py::test_a_partition_with_ledgers_waits_for_the_broker_that_writes_their_log",
    ),
    Mutant(
        "a collector that knows only its own uploads",
        "storage/segments/garbage_collector.py",
        "        return await self.catalog.condemn(key, self._uploads_begun_before_us)\n",
        "        return True\n",
        "tests/broker/test_shared_work.py::test_an_object_that_another_broker_is_about_to_list_is_not_deleted",
    ),
]


STORED_MUTANTS = [
    Mutant(
        "a slice acked before the one before it",
        "core/slice_sequence.py",
        "        assert self.counted_end <= min(self._in_flight, default=self.next_number)\n"
        "        return range(first, self.counted_end)\n",
        "        self._stored.clear()\n"
        "        self.counted_end = max(self.counted_end, number + 1)\n"
        "        return range(number, number + 1)\n",
        "tests/storage/test_slices.py::test_nothing_acked_is_lost_in_any_history",
    ),
    Mutant(
        "puts that overwrite",
        "storage/slices/slice_writer.py",
        "            await self._objects.put(key, leaving.pieces, create=True)\n",
        "            await self._objects.put(key, leaving.pieces)\n",
        "tests/storage/test_slices.py::test_a_paused_owner_never_acks_after_a_seal",
    ),
    Mutant(
        "a retry with other bytes",
        "storage/slices/slice_writer.py",
        "                await self._clock.sleep(backoff.next())\n",
        "                await self._clock.sleep(backoff.next())\n"
        "                if self._ended is None:\n"
        "                    more, self._gathered = self._gathered, []\n"
        "                    self._waiting[leaving.number] += self._gathered_done\n"
        "                    self._gathered_done, self._sequence._gathered_bytes = [], 0\n"
        "                    leaving.pieces.extend(bytes(one.body) for one in more)\n",
        "tests/storage/test_slices.py::test_nothing_acked_is_lost_in_any_history",
    ),
    Mutant(
        "the seal searched from 0",
        "storage/slices/sealing.py",
        "    number, counted = await _first_missing(objects, incarnation, lowest)\n",
        "    number, counted = (await _first_missing(objects, incarnation, 0))[0], 0\n",
        "tests/storage/test_slices.py::test_nothing_acked_is_lost_in_any_history",
    ),
    Mutant(
        "a marker deleted",
        "storage/slices/collecting.py",
        "            if size > HEADER_BYTES  # a marker has a header alone\n",
        "",
        "tests/broker/test_slices_deleted.py::test_markers_are_never_deleted",
    ),
    Mutant(
        "a lost session reused",
        "broker/cluster/cluster_membership.py",
        "        incarnation = (await take_ids(self._store, INCARNATION_COUNTER, 1))[0]\n",
        "        incarnation = (await take_ids(self._store, INCARNATION_COUNTER, 1))[0]\n"
        "        incarnation = self._session.incarnation if self._session is not None else incarnation\n",
        "tests/broker/test_cluster_membership.py"
        "::test_a_session_that_was_ended_is_followed_by_another_in_the_same_process",
    ),
    Mutant(
        "slices of a lost session that go on",
        "broker/partitions/broker_slices.py",
        "        if self._writer is None or self._writer.incarnation != incarnation:\n",
        "        if self._writer is None:\n",
        "tests/broker/test_slices_held.py::test_a_lost_session_is_never_reused",
    ),
    Mutant(
        "a slice deleted before its state is in a newer snapshot",
        "broker/partitions/sliced_log.py",
        "        if self._snapshot is not None:\n            needed.append(self._snapshot)\n",
        "",
        "tests/broker/test_stored_level.py::test_a_slice_deleted_before_its_state_is_in_a_newer_snapshot_would_lose_it",
    ),
    Mutant(
        "slices let go for an upload that was not listed",
        "broker/partitions/ownership.py",
        "        slices.uploaded(self._record.uploaded_end)\n",
        "        slices.uploaded(max(self._record.uploaded_end, unneeded_below))\n",
        "tests/broker/test_slices_deleted.py::test_slices_whose_upload_was_not_listed_are_still_needed",
    ),
    Mutant(
        "offsets not reserved",
        "broker/partitions/stored_partition.py",
        "        return self._promises and self._log.next_offset + batch.span > self._ownership.promised_end\n",
        "        return False\n",
        "tests/broker/test_takeover.py::test_another_broker_goes_on_behind_all_offsets_that_were_given_out",
    ),
    Mutant(
        "state slices dropped at takeover",
        "broker/partitions/slice_takeover.py",
        "        return SlicedState(sections, starts, snapshot, changes)\n",
        "        return SlicedState(sections, starts, None, [])\n",
        "tests/broker/test_stored_level.py::test_acked_ranges_and_a_seek_survive_a_kill",
    ),
    Mutant(
        "slices that a release has just ended dropped with those of former owners",
        "broker/partitions/ownership.py",
        "        if (own := self._open_sequence(slices)) is None:\n"
        "            return self._record.sequences  # a release has just ended it: the next owner needs all of them\n"
        "        needed = [one for one in self._record.sequences if keep_former or one.end < 0]\n",
        "        needed = [one for one in self._record.sequences if keep_former or one.end < 0]\n"
        "        if (own := self._open_sequence(slices)) is None:\n"
        "            return needed\n",
        "tests/broker/test_slices_deleted.py"
        "::test_a_release_at_the_same_moment_leaves_the_next_owner_the_slices_that_it_has_ended",
    ),
]

MOVE_MUTANTS = [
    Mutant(
        "slices of a move that are named before they count",
        "broker/partitions/log_carrying.py",
        "        await self._slices.flush()\n        sequence",
        "        sequence",
        "tests/broker/test_moves_of_logs.py::test_what_is_uploaded_what_is_not_and_every_position_move",
    ),
    Mutant(
        "a move of a partition that still accepts",
        "broker/partitions/open_partitions.py",
        "        partition.stop_for(broker)\n        moving = self._hand_over(",
        "        asyncio.get_running_loop().call_soon(partition.stop_for, broker)\n        moving = self._hand_over(",
        "tests/broker/test_moves.py::test_a_message_that_comes_into_memory_at_the_moment_of_the_move_is_not_lost",
    ),
    Mutant(
        "a drain that compares no other broker",
        "broker/maintenance.py",
        "value, await self._another_takes(name))",
        "value, [])",
        "tests/broker/test_maintenance.py::test_two_drains_at_once_leave_one_broker_that_takes_partitions",
    ),
]

RECORDS = {
    "0014-several-brokers.md": MUTANTS,
    "0015-acks-from-the-object-store.md": STORED_MUTANTS,
    "0021-moves.md": MOVE_MUTANTS,
}
"""By decision record: the mutants that it lists."""


def run_test(source: Path, test: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run one test against the package in `source`. Its temporary directories lie in one of their own, because a run of
    pytest removes those that it thinks earlier runs have left."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={temporary}", test],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
