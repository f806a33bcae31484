"""Decides which files can be removed from the log.

A file is removed when nothing in it is needed, and files are removed strictly from the oldest on:
    a batch         is not needed when its ledger was forgotten, or everything up to its end was released
    a control entry is not needed when its ledger was forgotten, or the batch after it was released; where no batch
                    followed, when its ledger was released at all: it describes what lies before it, and that is
                    removed before its file
    a state record  is not needed when its ledger was forgotten, or a newer snapshot is synced in a later file
and where a data ledger is bound to a state ledger, that one must have a synced snapshot in a later file too: it holds
what the file's batches changed in the partition's state (producers, cursors).
"""

from __future__ import annotations

from collections.abc import Callable

from .log_contents import STATE_KINDS, UNIT_SHIFT, Ledger, LedgerSpan, LogTable, WalFile


def releasable_files(
    table: LogTable,
    durable: int,
    take_out: Callable[[int], bool],
    held_from: int | None = None,
    before: int | None = None,
) -> list[WalFile]:
    """Return the oldest files that hold nothing needed: not the newest, none from generation `held_from` on, none that
    ends after the log position `before`, and none that is being read (`take_out` returns False)."""
    files: list[WalFile] = []
    for generation in range(table.oldest, table.newest if held_from is None else held_from):
        file = table.files[generation]
        if before is not None and file.end is not None and file.end > before:
            break
        if any(_is_needed(table, durable, span) for span in file.spans.values()) or not take_out(generation):
            break
        files.append(file)
    return files


def _is_needed(table: LogTable, durable: int, span: LedgerSpan) -> bool:
    ledger = table.ledgers[span.ledger_id]
    if ledger.forgotten:
        return False
    if span.kinds & STATE_KINDS:
        return not has_newer_snapshot(table, ledger, span.generation, durable)
    if ledger.state_ledger is not None:
        state = table.ledgers.get(ledger.state_ledger)
        if state is None or not (state.forgotten or has_newer_snapshot(table, state, span.generation, durable)):
            return True
    if span.first_offset < 0:
        following = [later for later in ledger.spans if later.generation > span.generation and later.first_offset >= 0]
        if not following:
            return ledger.released_below < 0
        return ledger.released_below <= following[0].first_offset
    return ledger.released_below < span.end_offset


def has_newer_snapshot(table: LogTable, ledger: Ledger, generation: int, durable: int) -> bool:
    """Return whether a synced snapshot of this ledger lies in a file after `generation`."""
    for span in reversed(ledger.spans):
        if span.generation <= generation:
            return False
        if span.snapshot_entry >= 0 and _position(table, span, span.snapshot_entry) < durable:
            return True
    return False


def _position(table: LogTable, span: LedgerSpan, entry: int) -> int:
    """Return the log position of an entry; in a closed file, where everything is durable, that of the file."""
    file = table.files[span.generation]
    if file.end is not None or span.index is None:
        return file.base
    return file.base + (span.index.places[entry - span.first_entry] << UNIT_SHIFT)
