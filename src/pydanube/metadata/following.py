"""Follows keys of the metadata store, so that what a broker has in memory agrees with what others write.

```
 start()    revision() ─► list_all(prefix) ─► replace(entries)          for each prefix
 run()      watch("/", revision + 1) ─► apply(event)                    to the handler of the key's prefix, in order
            Compacted ─► revision() ─► list_all ─► replace ─► watch
```

There is one watch for all prefixes, so that events of different prefixes come in the order in which they happened. A
caller that changed or read a key itself applies that at once; `wrote` says whether it may.

Invariants
    an event that is older than what is known of its key is never applied
    after Compacted everything is listed again: a change is applied late, but never missed
    what a caller wrote while a prefix was being listed is not undone by the list
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.telemetry import get_logger

from .store import Compacted, Event, KeyValue, MetadataStore, list_all

log = get_logger(__name__)

ROOT: Final = "/"
"""What all keys begin with."""


class Handler(NamedTuple):
    """What follows one prefix. Both calls are made on the event loop. An exception in `replace` fails the start; later
    ones are reported, and what they concern counts as applied."""

    apply: Callable[[Event], None]
    """Take over one change."""
    replace: Callable[[list[KeyValue]], None]
    """Take over everything that is below the prefix now; what is not in the list is gone."""


class Follower:
    """Calls handlers with every change below their prefixes."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._unlisted: set[str] = set()
        """The prefixes that were added and not listed yet."""
        self._known: dict[str, int] = {}
        """By key that exists: the revision of the newest change that was applied."""
        self._removed: dict[str, int] = {}
        """By key: the revision at which a caller deleted it, until the watch has passed that."""
        self._written: set[str] | None = None
        """The keys that callers wrote since a prefix is being listed; None: none is."""
        self._listed_until = 0
        """The last list may contain changes up to this revision, before the watch shows them."""
        self.seen = 0
        """The revision of the newest event, or of the last list."""
        self._is_running = False
        self._backoff = RetryBackoff()
        self._failure = ""
        """Why the store could not be followed, since something was last heard of it."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.revision = 0
        """Everything up to this revision was applied."""

    def add(self, prefix: str, handler: Handler, *, from_now: bool = False) -> None:
        """Follow a prefix; before `start`, or before `list_added` and `run`. No prefix may be the beginning of another.
        With `from_now`, what is there already is not listed, unless changes were missed."""
        assert not any(one.startswith(prefix) or prefix.startswith(one) for one in self._handlers)
        self._handlers[prefix] = handler
        if not from_now:
            self._unlisted.add(prefix)

    def wrote(self, key: str, revision: int, *, deleted: bool = False) -> bool:
        """Note that a caller wrote, deleted or read a key at this revision, and return whether it has to apply that to
        its memory: False if the watch has shown this change, or has passed it. Older events are skipped from now on."""
        if self._written is not None:
            self._written.add(key)
        if revision < self.seen or revision <= self._known_revision(key):
            return False
        if deleted:
            self._known.pop(key, None)
            self._removed[key] = revision
        else:
            self._known[key] = revision
        return True

    def _known_revision(self, key: str) -> int:
        return max(self._known.get(key, 0), self._removed.get(key, 0))

    async def start(self) -> None:
        """List everything. Raises what the store raises; call it again then."""
        self._unlisted = set(self._handlers)
        await self.list_added()

    async def list_added(self) -> None:
        """List the prefixes that were added since the last list, before `run`. Raises what the store raises."""
        if not self._unlisted:
            return
        revision = await self._store.revision()
        for prefix in [one for one in self._handlers if one in self._unlisted]:
            await self._list(prefix)
            self._unlisted.discard(prefix)
        if not self.revision:
            self.revision = self.seen = revision
        self._listed_until = max(self._listed_until, await self._store.revision())

    async def _list(self, prefix: str) -> None:
        written = self._written = set()
        try:
            entries = {one.key: one async for one in list_all(self._store, prefix)}
            while written:  # the list may be older than what was written meanwhile
                key = written.pop()
                if not key.startswith(prefix):
                    continue
                found = await self._store.get(key)
                entries.pop(key, None)
                if found is not None:
                    entries[key] = found
        finally:
            self._written = None
        self._known = {key: one for key, one in self._known.items() if not key.startswith(prefix)}
        self._known.update((one.key, one.mod_revision) for one in entries.values())
        handler = self._handlers[prefix]
        try:
            handler.replace(sorted(entries.values(), key=lambda one: one.key))
        except Exception as error:
            if not self._is_running:
                raise
            log.error("metadata.handler_failed", prefix=prefix, exc_info=error)

    async def run(self) -> None:
        """Apply changes as they come, after `start`, until cancelled."""
        self._is_running = True
        while True:
            try:
                await self._watch()
            except Compacted:
                log.info("metadata.listed_again", after=self.revision)
                await self._start_again()
            except DanubeError as error:
                self._note_failure(error)
                await self._clock.sleep(self._backoff.next())

    def _note_failure(self, error: DanubeError) -> None:
        """Log why the store cannot be followed, once until that changes."""
        if error.message != self._failure:
            log.warning("metadata.not_followed", error=error.message)
        self._failure = error.message

    async def reached(self, revision: int) -> None:
        """Wait until a change of this revision or a later one was applied. Cancelled: nothing happens."""
        if self.seen >= revision:
            return
        waiting = (revision, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await waiting[1]
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def _watch(self) -> None:
        pending = self.revision
        async for event in self._store.watch(ROOT, self.revision + 1):
            if event.revision > pending:  # events of one revision follow each other: the one before is complete
                self._complete(pending)
                pending = event.revision
            if event.revision <= self._listed_until and not event.deleted and event.key not in self._known:
                await self._apply_current(event)
            else:
                self._apply(event)
            self._advance(event.revision)

    def _complete(self, revision: int) -> None:
        """Note that everything up to this revision was applied: nothing older comes any more."""
        self.revision = max(self.revision, revision)
        if self._removed:
            self._removed = {key: one for key, one in self._removed.items() if one > self.revision}

    def _advance(self, revision: int) -> None:
        self._failure = ""
        self._backoff.reset()
        self.seen = max(self.seen, revision)
        for waiting in [one for one in self._waiting if one[0] <= self.seen]:
            self._waiting.remove(waiting)
            waiting[1].set_result(None)

    async def _apply_current(self, event: Event) -> None:
        """Apply a put that is older than the list, which did not have the key: it may be deleted again."""
        found = await self._store.get(event.key)
        if found is not None and found.mod_revision >= event.revision:
            self._apply(Event(found.mod_revision, found.key, found))

    def _apply(self, event: Event) -> None:
        if event.revision <= self._known_revision(event.key):
            return
        if event.deleted:
            self._known.pop(event.key, None)
        for prefix, handler in self._handlers.items():
            if event.key.startswith(prefix):
                if not event.deleted:
                    self._known[event.key] = event.revision
                try:
                    handler.apply(event)
                except Exception as error:
                    log.error("metadata.handler_failed", key=event.key, exc_info=error)
                return

    async def _start_again(self) -> None:
        """List everything again, until the store can be read. What is missed until then is in the lists."""

        async def list_all_again() -> int:
            revision = await self._store.revision()
            await self.start()
            return revision

        revision = await until_done(list_all_again, self._backoff, self._clock, self._note_failure)
        self._complete(revision)
        self._advance(revision)


class KeyMirror:
    """What a broker has in memory of the keys below one prefix, with the revision of each.

    `take` is called with every key that changes and its new value (None: it is gone).
    Works with a follower, and without one for a broker alone, whose own writes are all there are.
    """

    def __init__(self, prefix: str, take: Callable[[str, bytes | None], None]) -> None:
        self.prefix = prefix
        self.revisions: dict[str, int] = {}
        """By key: the revision of its last change that is in memory."""
        self.is_listed = False
        self._take = take
        self._follower: Follower | None = None

    def follow(self, follower: Follower) -> None:
        self._follower = follower
        follower.add(self.prefix, Handler(self._apply, self.replace))

    async def load(self, store: MetadataStore) -> None:
        """Read everything. A second call reads again what is newer than what is known."""
        if self.is_listed and self._follower is not None:
            await self.reload(store)
        else:
            self.replace([one async for one in list_all(store, self.prefix)])

    def replace(self, entries: list[KeyValue]) -> None:
        """Take over everything that exists. Raises what `take` raises, after the rest was taken."""
        self.is_listed = True
        for key in self.revisions.keys() - {one.key for one in entries}:
            self._take_over(key, None, 0)
        failure: DanubeError | None = None
        for one in entries:
            if self.revisions.get(one.key) == one.mod_revision:
                continue
            try:
                self._take_over(one.key, one.value, one.mod_revision)
            except DanubeError as error:  # a record that cannot be read does not keep the others away
                failure = failure or error
        if failure is not None:
            raise failure

    def learn(self, key: str, value: bytes | None, revision: int) -> None:
        """Take over what this broker itself wrote or read at this revision, unless something newer is known."""
        is_news = value is None or self.revisions.get(key) != revision
        if (self._follower is None or self._follower.wrote(key, revision, deleted=value is None)) and is_news:
            self._take_over(key, value, revision)

    def learn_deleted(self, key: str, former: int) -> None:
        """Take over a deletion of unknown revision, if nothing changed the key since the revision `former`."""
        if self.revisions.get(key) == former:
            self._take_over(key, None, 0)

    async def learn_written(self, store: MetadataStore, key: str, value: bytes | None, revision: int) -> None:
        """Take over what this broker has just written; `revision` 0: it is not known at which revision that was."""
        if revision:
            self.learn(key, value, revision)
        elif value is None:
            self.learn_deleted(key, self.revisions.get(key, 0))
        else:
            await self.refresh(store, key)

    async def reload(self, store: MetadataStore) -> None:
        """Read everything again, and take over what is newer than what is known."""
        former = dict(self.revisions)
        entries = {one.key: one async for one in list_all(store, self.prefix)}
        for key, revision in former.items():
            if key not in entries:
                self.learn_deleted(key, revision)
        for one in entries.values():
            self.learn(one.key, one.value, one.mod_revision)

    async def refresh(self, store: MetadataStore, key: str) -> KeyValue | None:
        """Read a key, take it over if it is newer than what is known, and return it. That it is gone is left to the
        watch, which says it in order."""
        found = await store.get(key)
        if found is not None:
            self.learn(key, found.value, found.mod_revision)
        return found

    async def ask(self, store: MetadataStore, key: str) -> None:
        """In a cluster, read a key that is not in memory, before it is said that there is none: this broker may not
        have heard of it yet."""
        if self._follower is not None and key not in self.revisions:
            await self.refresh(store, key)

    def _apply(self, event: Event) -> None:
        self._take_over(event.key, None if event.current is None else event.current.value, event.revision)

    def _take_over(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        self._take(key, value)
