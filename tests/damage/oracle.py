"""Judges what a broker makes of a damaged data directory.

    whole       everything that was promised is served
    named       some requests are answered with an error that names what is damaged; everything else is served
    refused     the start is refused, with one line that names a file and a remedy
    wrong       anything else: something is missing, changed, repeated or moved without an error; a traceback; a hang

The judgement reads everything back through a client and compares it with what was acknowledged. After a start that
served everything it also publishes, commits what was staged, and starts the broker once more. After any other start
the undamaged file is put back, and then everything must be served: a start on damaged files must not make a loss final.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from expected import Expected, ExpectedSubscription, ExpectedTopic, Stage
from world import HANG_S, publish_as, stored

import pydanube
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import Corrupt, DanubeError, Refused
from pydanube.model.names import TopicName
from pydanube.model.policies import FIELDS
from pydanube.operations import subscriptions
from pydanube.runtime.clock import SystemClock
from pydanube.server.restoring import restore
from pydanube.server.server import Server
from pydanube.settings import Settings

T = TypeVar("T")
Verdict = Literal["whole", "named", "refused", "wrong"]

REMEDY = re.compile(r"\b(put|restore|mount|start|choose|delete|free|move|use|run|take|repair|see)\b", re.IGNORECASE)


@dataclass
class Judgement:
    verdict: Verdict = "whole"
    named: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def be_wrong(self, what: str) -> None:
        self.verdict = "wrong"
        self.wrong.append(what)

    def be_named(self, what: str) -> None:
        self.named.append(what)
        if self.verdict == "whole":
            self.verdict = "named"


async def judge(directory: Path, expected: Expected) -> Judgement:
    """Start a broker on the directory, compare what it serves with what is expected, and stop it.

    What is published and committed here is added to `expected`.
    """
    judgement = Judgement()
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            async with asyncio.timeout(HANG_S):
                async with _served(directory, expected, judgement) as url:
                    await _Examination(url, expected, judgement).examine()
                if judgement.verdict == "whole":
                    await _check_leases(directory, expected, judgement)
        except TimeoutError:
            judgement.be_wrong(f"a hang: not done after {HANG_S} s")
    if "Traceback" in errors.getvalue():
        judgement.be_wrong("a traceback in the log: " + errors.getvalue()[-2000:])
    return judgement


@asynccontextmanager
async def _served(directory: Path, expected: Expected, judgement: Judgement) -> AsyncIterator[str]:
    """Run a broker in this process. A start that is refused ends the block with `judgement` saying so."""
    loop = asyncio.get_running_loop()
    former = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: judgement.be_wrong(f"an exception that is not handled: {context}"))
    try:
        try:
            server = await Server.start(_settings(directory, expected))
        except DanubeError as error:
            _judge_refusal(error, directory, judgement)
            yield ""
            return
        except Exception as error:
            judgement.be_wrong(f"the start ends with a traceback: {type(error).__name__}: {error}")
            yield ""
            return
        try:
            yield server.url
        finally:
            try:
                await server.close()
            except Exception as error:
                judgement.be_wrong(f"the broker does not end in order: {type(error).__name__}: {error}")
    finally:
        loop.set_exception_handler(former)


def _settings(directory: Path, expected: Expected) -> Settings:
    """Return the settings that the directory was written with, but without uploads by age."""
    chosen = {
        **expected.settings,
        "server.data_dir": str(directory),
        "server.port": 0,
        "server.http_port": 0,
        "grpc.data": False,
        "grpc.admin": False,
        "storage.shutdown_upload_s": 0,
        "storage.segment_age_s": 86400,
        "topics.auto_create": False,
    }
    return Settings.load(None, {}, chosen)


def _judge_refusal(error: DanubeError, directory: Path, judgement: Judgement) -> None:
    judgement.verdict = "refused"
    judgement.named.append(error.message)
    if "\n" in error.message:
        judgement.be_wrong(f"the refusal is not one line: {error.message!r}")
    if str(directory) not in error.message and not re.search(r"wal-\d|metadata|IDENTITY|MANIFEST", error.message):
        judgement.be_wrong(f"the refusal names no file: {error.message}")
    if not REMEDY.search(error.message):
        judgement.be_wrong(f"the refusal names no remedy: {error.message}")


async def judge_restore(objects: Path, directory: Path, expected: Expected, newest: str) -> Judgement:
    """Restore an empty directory from a damaged object store that had everything, and judge what is served then.

    What the restore reports as damaged may be missing afterwards. What it does not report may not. Where the `newest`
    manifest is gone without a trace, the report names the older one that it took, and when that was written.
    """
    judgement = Judgement()
    chosen = expected.copy()
    chosen.settings["storage.url"] = objects.as_uri()
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            async with asyncio.timeout(HANG_S):
                report = await restore(_settings(directory, chosen))
                lost = [*report.damaged_manifests, *report.missing]
                if newest not in report.manifest:
                    lost.append(f"{report.manifest} of {report.manifest_us}")
                if lost:
                    judgement.be_named(f"the restore reports {lost}")
                    return judgement
                async with _served(directory, chosen, judgement) as url:
                    await _Examination(url, chosen, judgement, is_restored=True).examine()
        except DanubeError as error:
            judgement.verdict = "refused"
            judgement.named.append(error.message)
        except Exception as error:
            judgement.be_wrong(f"the restore ends with a traceback: {type(error).__name__}: {error}")
    if "Traceback" in errors.getvalue():
        judgement.be_wrong("a traceback in the log: " + errors.getvalue()[-2000:])
    return judgement


class _Examination:
    """Compares everything that a broker serves with what is expected of it.

    `is_restored`: the data directory was made from the object store, so that offsets go on behind a gap and whatever
    was only in the log or staged is gone.
    """

    def __init__(self, url: str, expected: Expected, judgement: Judgement, *, is_restored: bool = False) -> None:
        self.url = url
        self.expected = expected
        self.judgement = judgement
        self.is_restored = is_restored

    async def examine(self) -> None:
        if not self.url:
            return
        async with pydanube.connect(self.url, timeout=HANG_S / 4) as client:
            self.client = client
            await self._check_names()
            for name, topic in self.expected.topics.items():
                await self._check_topic(name, topic)
            if self.judgement.verdict == "whole" and not self.is_restored:
                await self._go_on()

    async def _ask(self, what: str, asked: Awaitable[T]) -> T | None:
        """Return the answer. An error is judged, and then the result is None."""
        try:
            return await asked
        except (Corrupt, Refused) as error:
            if type(error) in (Corrupt, Refused):
                self.judgement.be_named(f"{what}: {error.message}")
            else:
                self.judgement.be_wrong(f"{what}: {type(error).__name__}: {error.message}")
        except DanubeError as error:
            self.judgement.be_wrong(f"{what}: {type(error).__name__}: {error.message}")
        return None

    def _compare(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.judgement.be_wrong(f"{what} is {found!r} and was {wanted!r}")

    async def _check_names(self) -> None:
        expected, client = self.expected, self.client
        if (found := await self._ask("namespaces", client.list_namespaces())) is not None:
            self._compare("the list of namespaces", sorted(found), expected.namespaces)
        if (found := await self._ask("topics", client.list_topics())) is not None:
            self._compare("the list of topics", sorted(found), sorted(expected.topics))
        for target, policies in expected.namespace_policies.items():
            await self._check_policies(target, policies)

    async def _check_policies(self, target: str, policies: dict[str, int]) -> None:
        if (report := await self._ask(f"policies of {target}", self.client.policies(target))) is not None:
            own = {name: value for name in FIELDS if (value := getattr(report.own, name)) is not None}
            self._compare(f"policies of {target}", own, policies)

    async def _check_topic(self, name: str, topic: ExpectedTopic) -> None:
        described = await self._ask(name, self.client.describe_topic(name))
        if described is None:
            return
        config = described.config
        found = (described.topic_id, config.partitions, config.reliable, str(config.ack_level))
        self._compare(f"configuration of {name}", found, (
            topic.topic_id, topic.partitions, topic.reliable, topic.ack_level
        ))  # fmt: skip
        self._compare(f"partitions of {name}", len(described.partitions), config.partition_count)
        self._compare(f"subscriptions of {name}", sorted(described.subscriptions), sorted(topic.subscriptions))
        await self._check_policies(name, topic.policies)
        if topic.is_stored:
            for one in described.partitions:
                if one.health == "ok":
                    await self._check_messages(name, topic, one.index, one.start_offset, one.end_offset)
                else:
                    self.judgement.be_named(f"{name}[{one.index}]: {one.health}")
        for subscription, wanted in topic.subscriptions.items():
            if subscription in described.subscriptions:
                await self._check_subscription(name, topic, subscription, wanted)

    async def _check_messages(self, name: str, topic: ExpectedTopic, partition: int, start: int, end: int) -> None:
        place, acked = f"{name}[{partition}]", topic.acked.get(partition, {})
        if acked or not self.is_restored:
            self._compare(f"first offset of {place}", start, 0)
        if end < topic.end(partition):
            self.judgement.be_wrong(f"{place} ends at {end}, and offsets below {topic.end(partition)} were given out")
        found = await self._ask(place, stored(self.client, name, partition, 0, end))
        if found is None:
            return
        missing = sorted(acked.keys() - found.keys())
        if topic.ack_level == "written":
            for offset in [one for one in missing if acked[one] in self.expected.unsynced]:
                missing.remove(offset)
                del acked[offset]
        if missing:
            self.judgement.be_wrong(f"{place}: {len(missing)} acked messages are missing, from offset {missing[0]}")
        changed = sorted(offset for offset, payload in acked.items() if found.get(offset, payload) != payload)
        if changed:
            self.judgement.be_wrong(f"{place}: offset {changed[0]} is {found[changed[0]]!r}, not {acked[changed[0]]!r}")
        strange = sorted(offset for offset, payload in found.items() if payload not in topic.sent)
        if strange:
            self.judgement.be_wrong(f"{place}: offset {strange[0]} holds {found[strange[0]][:99]!r}: never sent to it")
        if len(set(found.values())) != len(found):
            self.judgement.be_wrong(f"{place}: a message is stored twice")
        if topic.ack_level == "durable" and not self.is_restored and sorted(found) != list(range(end)):
            self.judgement.be_wrong(f"{place}: offsets of a durable topic are not dense")

    async def _check_subscription(
        self, name: str, topic: ExpectedTopic, subscription: str, wanted: ExpectedSubscription
    ) -> None:
        what = f"subscription {subscription} of {name}"
        described = await self._ask(what, self.client.describe_subscription(name, subscription))
        if described is None:
            return
        self._compare(f"type of {what}", str(described.type), wanted.type)
        self._compare(f"failure policy of {what}", str(described.failure_policy), wanted.failure_policy)
        if not topic.is_stored:
            return
        for partition in range(max(1, topic.partitions)):
            unsettled = await self._ask(f"{what}[{partition}]", self._unsettled(name, subscription, partition))
            if unsettled is None:
                continue
            settled = set(wanted.settled.get(partition, ()))
            open_to_doubt = set(wanted.perhaps.get(partition, ()))
            skipped = sorted(topic.acked.get(partition, {}).keys() - settled - open_to_doubt - unsettled)
            if skipped:
                self.judgement.be_wrong(f"{what}[{partition}]: offset {skipped[0]} was never acked, and counts as such")
            again = sorted(settled & unsettled)
            if self.expected.unsynced_acks:
                wanted.settled[partition] = sorted(settled - unsettled)
            elif again:
                self.judgement.be_wrong(f"{what}[{partition}]: offset {again[0]} was acked, and would come again")

    async def _unsettled(self, topic: str, subscription: str, partition: int) -> set[int]:
        found: set[int] = set()
        after = 0
        while True:
            request = subscriptions.ListUnsettled(
                topic=TopicName.parse(topic),
                subscription=subscription,
                partition=partition,
                messages_max=1000,
                after=after,
            )
            ranges = (await self.client._brokers.call(request, subscriptions.OffsetRanges)).ranges
            if not ranges:
                return found
            for start, end in ranges:
                found.update(range(start, end))
            after = ranges[-1][1]

    # -- going on ------------------------------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        """After everything was served: publish, commit and restart, and check that this continues what was there."""
        for stage in self.expected.stages:
            await self._commit(stage)
        for identity in self.expected.identities:
            what = f"producer {identity.name}"
            published = await self._ask(
                what,
                publish_as(
                    self.client,
                    identity.topic,
                    identity.name,
                    identity.payloads,
                    identity.producer_id,
                    identity.producer_epoch,
                ),
            )
            if published is not None:
                opened, offset, duplicate = published
                self._compare(f"{what}'s id", opened.producer_id, identity.producer_id)
                self._compare(f"{what}'s batch, sent again,", (offset, duplicate), (identity.offset, True))
        for name, topic in self.expected.topics.items():
            await self._publish_one(name, topic)

    async def _publish_one(self, name: str, topic: ExpectedTopic) -> None:
        for partition in range(max(1, topic.partitions)):
            payload = f"{name}[{partition}] after {len(topic.sent)}"
            topic.sent.add(payload)
            receipt = await self._ask(f"publish to {name}[{partition}]", self._publish(name, partition, payload))
            if receipt is not None and topic.reliable:
                if receipt.offset < topic.end(partition):
                    self.judgement.be_wrong(f"{name}[{partition}]: offset {receipt.offset} was given out twice")
                else:
                    topic.add(partition, receipt.offset, payload)

    async def _publish(self, name: str, partition: int, payload: str) -> pydanube.Receipt:
        async with self.client.producer(name, name="meter", partition_by=partition) as producer:
            return await producer.send(payload.encode(), key="a")

    async def _commit(self, stage: Stage) -> None:
        """Commit the staged batch, for the first time or again, and check that all of it is published, once."""
        what = f"commit {stage.batch_id} of query {stage.query}"
        while True:
            done = await self._ask(
                what, self.client.commit_stages(stage.query, stage.run, stage.batch_id, stage.stages, wait_ms=500)
            )
            if done is None:
                return
            self._compare(f"{what} counts as a repetition, which", done.repeated, stage.committed)
            stage.committed = True
            if done.applied:
                break
            obstacle = await self._obstacle(stage.query)
            if obstacle:
                self.judgement.be_named(f"{what}: {obstacle}")
                return
        topic = self.expected.topics[stage.topic]
        for one in (await self.client.describe_topic(stage.topic)).partitions:
            found = await self._ask(what, stored(self.client, stage.topic, one.index, 0, one.end_offset))
            wanted = stage.payloads.get(one.index, [])
            if found is not None:
                there = [payload for payload in found.values() if payload in set(wanted)]
                self._compare(f"{what}: partition {one.index}", there, wanted)
                for offset, payload in found.items():
                    if payload in wanted:
                        topic.add(one.index, offset, payload)

    async def _obstacle(self, query: str) -> str:
        queries = await self._ask(f"query {query}", self.client.staged_queries())
        return next((one.obstacle for one in queries or () if one.query == query), "")


async def _check_leases(directory: Path, expected: Expected, judgement: Judgement) -> None:
    """The broker uses no leases yet, so the metadata store itself is asked."""
    try:
        async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
            for lease, key in expected.leases.items():
                await store.keep_alive(lease)
                found = await store.get(key)
                if found is None or found.lease != lease:
                    judgement.be_wrong(f"key {key} of lease {lease} is gone, or not the lease's any more: {found}")
    except DanubeError as error:
        judgement.be_wrong(f"leases: {type(error).__name__}: {error.message}")
