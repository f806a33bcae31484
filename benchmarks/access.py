"""What authorization and audit cost: batched publishing with both beside publishing without, and decisions with many
bindings.

    python benchmarks/access.py                       # some minutes
    python benchmarks/access.py --pairs 5 --bindings 1000 --rounds 0

bench         `danube bench` publishing at a broker with authentication and audit, with a key, and at one without, in
              turns: the median of the ratios of each round
publishing    batches to a topic in memory through the facade of a broker, whose authorizer is AccessRules, with a
              session in the audit, and AllowAll, without one, in turns: there is no network and no disk, so that the
              check weighs more than it does for a client; the median of the pairs counts
decisions     one that is remembered, and one that is made anew, of principals with ten bindings each
in force      from a change of the rules until a revoked producer is fenced and a revoked consumer is detached, at a
              broker with many of both

Publishing and decisions are processor time of the event loop's thread, which other processes of the machine change
little; the others are time on the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from pydanube.broker import Attachment, Broker, Producer, Published
from pydanube.broker.security.audit import AuditParts
from pydanube.broker.security.audit_operations import Origin
from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.cli.bench.runs import measure
from pydanube.cli.bench.scenario import Scenario
from pydanube.codec.batch import encode
from pydanube.core.access import Action, AllowAll, Authorizer, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicName
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("broker", "metadata", "security")]
from access_world import NoSink  # noqa: E402
from audit_harness import ListSink  # noqa: E402
from broker_harness import open_broker  # noqa: E402 -- found by the path above

BENCH_TARGET, OVERHEAD_TARGET, DECISION_TARGET_US, FORCE_TARGET_MS = 0.98, 1.02, 5.0, 100.0
BATCHES, ROWS, PAYLOAD = 200, 100, b"x" * 100
OPEN = 500
ROUNDS = 15
TOPIC = TopicName.parse("/default/orders")
ROOT = Principal("root")


def bind(rules: AccessRules, number: int, subject: str, role: str, resource: str) -> None:
    name = str(number)
    rules.set_binding(name, Binding(name, BoundSubject.parse(subject), (role,), ResourcePattern.parse(resource)))


def fill(rules: AccessRules, bindings: int) -> None:
    """Give a thousand users some bindings each, a third of them with wildcards."""
    places = ("/ns-{0}/topic-{1}", "/ns-{0}/logs-*", "/ns-{0}/topic-{1}/billing")
    for number in range(bindings):
        user, place = number % 1000, places[number % 3].format(number % 50, number)
        bind(rules, number, f"user:u{user}", ("producer", "reader", "consumer")[number % 3], place)


async def publish(broker: Broker, producer: Producer, batches: list[memoryview]) -> float:
    """Publish the batches, and return the processor seconds until all are acked."""
    left, done = len(batches), asyncio.Event()

    def answered(outcome: Published | DanubeError) -> None:
        nonlocal left
        if isinstance(outcome, DanubeError):
            raise outcome
        left -= 1
        if not left:
            done.set()

    started = time.thread_time()
    for batch in batches:
        broker.batches.publish(ROOT, producer, batch, answered)
    await done.wait()
    return time.thread_time() - started


async def measure_publishing(pairs: int, bindings: int) -> float:
    """Return how much longer publishing takes with rules and an audit than without, as a ratio."""
    rules = AccessRules()
    fill(rules, bindings)
    bind(rules, bindings, "user:root", "producer", "/default")
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        async with open_broker(Path(directory), audit=AuditParts(ListSink())) as broker:
            broker.audit.start(broker._tasks)
            await broker.topics.create(ROOT, TOPIC, TopicConfig(ack_level=AckLevel.MEMORY))
            with broker.audit.operation(Origin("native", "127.0.0.1"), "OpenProducer"):
                producer = await broker.open_producer(ROOT, TOPIC, 0, "", 0, 0)
            session = producer.session
            assert session is not None
            encoded = encode([PAYLOAD] * ROWS, publish_times=1, producer_id=producer.producer_id)

            async def once(authorizer: Authorizer) -> float:
                batches = [memoryview(bytearray(encoded)) for _ in range(BATCHES)]
                broker._batch_authorizer = authorizer
                producer.session = session if authorizer is rules else None
                return await publish(broker, producer, batches)

            await once(rules), await once(AllowAll())  # warm
            for number in range(pairs):
                order = (rules, AllowAll()) if number % 2 else (AllowAll(), rules)
                taken = {type(one): await once(one) for one in order}
                ratios.append(taken[AccessRules] / taken[AllowAll])
    return statistics.median(ratios)


async def measure_bench(rounds: int) -> float:
    """Return the rate of `danube bench` with authentication and audit, to the rate without."""
    scenario = Scenario(size=100, batch=500, count=3_000_000, ack_level="memory", consumers=0)
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {"DANUBE_AUTH_ENABLED": "true"}
        async with (
            await BrokerProcess.start(directory / "plain") as plain,
            await BrokerProcess.start(directory / "known", environment=settings) as known,
        ):
            key = (directory / "known" / "admin-key").read_text().strip()
            for number in range(rounds):
                rates: dict[str, float] = {}
                for broker in (plain, known) if number % 2 else (known, plain):
                    with patch.dict(os.environ, {"DANUBE_API_KEY": key} if broker is known else {}):
                        measured = (await measure(scenario, broker.url, broker)).throughput
                    assert measured is not None
                    rates[broker.url] = measured.publish
                ratios.append(rates[known.url] / rates[plain.url])
    return statistics.median(ratios)


def measure_decisions(bindings: int) -> tuple[float, float]:
    """Return the microseconds of a decision that is remembered, and of one that is not."""
    rules, count = AccessRules(), 5_000
    fill(rules, bindings)
    asked = [(Principal(f"u{n % 1000}"), f"/ns-{n % 50}/topic-{n}") for n in range(count)]
    for principal, resource in asked:
        rules.allows(principal, Action.PRODUCE, resource)  # makes the grants and the expressions of each user
    anew, remembered = list[float](), list[float]()
    for _ in range(ROUNDS):
        rules._decided.clear()
        anew.append(_timed(rules, asked))
        remembered.append(_timed(rules, asked))
    return statistics.median(remembered), statistics.median(anew)


def _timed(rules: AccessRules, asked: list[tuple[Principal, str]]) -> float:
    started = time.thread_time()
    for principal, resource in asked:
        rules.allows(principal, Action.PRODUCE, resource)
    return (time.thread_time() - started) / len(asked) * 1e6


async def measure_force(bindings: int) -> float:
    """Return the milliseconds from a change until a revoked producer is fenced and a revoked consumer is detached."""
    rules, guest = AccessRules([ROOT.id]), Principal("guest")
    fill(rules, bindings)
    bind(rules, bindings, "user:guest", "namespace-admin", "/default")
    with tempfile.TemporaryDirectory() as directory:
        async with open_broker(Path(directory), authorizer=rules) as broker:
            await broker.topics.create(ROOT, TOPIC, TopicConfig())
            sink = NoSink()
            for number in range(OPEN):
                await broker.open_producer(ROOT, TOPIC, 0, "", 0, 0)
                attachment = Attachment("s", f"c{number}", SubscriptionType.SHARED)
                await broker.subscriptions.subscribe(ROOT, TOPIC, 0, attachment, NoSink())
            producer = await broker.open_producer(guest, TOPIC, 0, "", 0, 0)
            await broker.subscriptions.subscribe(
                guest, TOPIC, 0, Attachment("s", "guest", SubscriptionType.SHARED), sink
            )
            started = time.perf_counter()
            rules.set_binding(str(bindings), None)
            while producer.fenced is None or sink.error is None:  # noqa: ASYNC110 - nothing else is measured
                await asyncio.sleep(0)
            return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=101)
    parser.add_argument("--bindings", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15, help="of danube bench")
    options = parser.parse_args()
    ratio = asyncio.run(measure_publishing(options.pairs, options.bindings))
    remembered, anew = measure_decisions(options.bindings)
    force = asyncio.run(measure_force(options.bindings))
    if options.rounds:
        rate = asyncio.run(measure_bench(options.rounds))
        print(f"bench        {rate:.3f} of the rate without authentication and audit (target {BENCH_TARGET})")
    print(f"{options.bindings} bindings, {options.pairs} pairs of {BATCHES} batches with {ROWS} messages")
    print(f"publishing   {ratio:.4f} of the time without rules and audit (target {OVERHEAD_TARGET})")
    print(f"decisions    {remembered:.2f} us remembered, {anew:.2f} us anew (target {DECISION_TARGET_US})")
    print(f"in force     {force:.1f} ms with {OPEN} producers and {OPEN} consumers (target {FORCE_TARGET_MS})")


if __name__ == "__main__":
    main()
