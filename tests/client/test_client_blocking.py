"""The blocking client: the same surface, one thread, gone afterwards."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import islice

import pytest
from client_harness import client_threads

import pydanube
from pydanube import (
    BlockingClient,
    BlockingConsumer,
    BlockingDeadLetters,
    BlockingProducer,
    BlockingReader,
    BlockingSchemas,
    Client,
    Consumer,
    DeadLetters,
    Full,
    Invalid,
    NotFound,
    Producer,
    Reader,
    Receipt,
    Refused,
    Schemas,
    StaleEpoch,
    Unavailable,
    testing,
)
from pydanube.client import Access, BlockingAccess
from pydanube.client.admin.storage import Storage
from pydanube.client.admin.subscriptions import Subscriptions
from pydanube.client.admin.topics import Namespaces, Topics
from pydanube.client.blocking.areas import BlockingNamespaces, BlockingStorage, BlockingSubscriptions, BlockingTopics
from pydanube.client.blocking.loop_thread import LoopThread
from pydanube.runtime.clock import SystemClock

TOPIC = "/default/orders"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with testing.broker_thread() as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[BlockingClient]:
    with pydanube.connect_blocking(url) as client:
        for topic in client.list_topics():
            client.delete_topic(topic)
        yield client


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No loop of our own here: only threads are counted."""
    before = client_threads()
    yield
    assert client_threads() <= before


def test_publish_and_receive(client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    with client.producer(TOPIC) as producer:
        assert isinstance(producer.send(b"one", key="a", attributes={"k": "v"}), Receipt)
        assert len(producer.send_many([b"%d" % number for number in range(1_000)])) == 1_000
    with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        for message in islice(consumer, 1_001):
            consumer.ack(message)
    assert [place.lag for place in client.describe_subscription(TOPIC, "billing").partitions] == [0, 0]


def test_queued_sends_and_flush(client: BlockingClient) -> None:
    with client.producer(TOPIC, queue_messages=1_000) as producer:
        for number in range(500):
            producer.send_nowait(b"%d" % number)
        producer.queue_many([b"x"] * 100)
        producer.flush()
        assert client.partitions(TOPIC)[0].end_offset == 600
        with pytest.raises(Full):
            fill(producer)
        producer.flush()
        producer.send_nowait(b"x", key=5)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="1 queued message"):
            producer.flush()
    with client.reader(TOPIC, start="earliest", end="latest") as reader:
        payloads = [message.payload for message in reader]
    assert payloads[:500] == [b"%d" % number for number in range(500)]


def fill(producer: BlockingProducer) -> None:
    for _ in range(1_000_000):
        producer.send_nowait(bytes(1_000))


def test_messages_batches_and_timeouts(client: BlockingClient) -> None:
    with client.producer(TOPIC, batch_messages=100) as producer:
        producer.send_many([b"%d" % number for number in range(300)])
    with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        assert consumer.receive(timeout=60).offset == 0
        assert next(consumer).offset == 1
        rest = consumer.receive_batch(timeout=60)
        assert rest.offsets.tolist() == list(range(2, 100))
        assert consumer.receive_batch(timeout=60).offsets[0] == 100
        consumer.ack_cumulative(consumer.receive_batch(timeout=60))
        consumer.flush()
        assert client.describe_subscription(TOPIC, "billing").partitions[0].position == 300
        with pytest.raises(TimeoutError):
            consumer.receive(timeout=0.02)
        consumer.seek(250)
        assert [len(batch) for batch in take(consumer.batches(), 1)] == [50]
        with pytest.raises(Invalid):
            consumer.ack(b"not received")  # type: ignore[arg-type]
    with client.reader(TOPIC, start=290, end="latest") as reader:
        assert [len(batch) for batch in reader.batches()] == [10]
    reader = client.reader(TOPIC, start=299, end="latest")
    assert [message.payload for message in reader] == [b"299"]
    reader.close()


def take(batches: Iterator[pydanube.ReceivedBatch], count: int) -> list[pydanube.ReceivedBatch]:
    return [next(batches) for _ in range(count)]


def test_errors_are_the_same(client: BlockingClient) -> None:
    with pytest.raises(NotFound):
        client.describe_topic("/default/nowhere")
    with pytest.raises(Invalid):
        client.producer("no name")
    with pytest.raises(ZeroDivisionError), client.producer(TOPIC):
        raise ZeroDivisionError


def test_it_may_be_used_from_several_threads(client: BlockingClient) -> None:
    with client.producer(TOPIC) as producer:

        def work() -> None:
            for _ in range(50):
                producer.send(b"x")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert client.partitions(TOPIC)[0].end_offset == 200


def test_what_is_left_open_is_closed_with_the_client(url: str) -> None:
    with pydanube.connect_blocking(url) as client:
        producer = client.producer(TOPIC).open()
        producer.send_nowait(b"queued")
    for _ in range(2):
        with pytest.raises(Refused):
            producer.send(b"x")
        with pytest.raises(Refused):
            producer.send_nowait(b"x")


def test_what_is_queued_when_the_program_ends_is_published(url: str, client: BlockingClient) -> None:
    program = f"""
import pydanube
client = pydanube.connect_blocking({url!r}).open()
producer = client.producer({TOPIC!r}).open()
for number in range(1_000):
    producer.send_nowait(b"%d" % number)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stderr == ""
    assert client.partitions(TOPIC)[0].end_offset == 1_000


def in_a_thread(work: Callable[[], object]) -> Future[object]:
    """Run the call in a daemon thread: it may hang if something is broken."""
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class Asleep(SystemClock):
    """Every sleep lasts until it is cancelled; `task_sleeps` is set once a task sleeps."""

    def __init__(self) -> None:
        self.task_sleeps = threading.Event()

    async def sleep(self, seconds: float) -> None:
        self.task_sleeps.set()
        await asyncio.Event().wait()


def test_a_call_that_waits_ends_when_another_thread_closes_the_client() -> None:
    clock = Asleep()
    with testing.broker_thread() as url:
        client = BlockingClient(Client(url, clock=clock), LoopThread()).open()
    calling = in_a_thread(client.list_topics)
    assert clock.task_sleeps.wait(60), "before it tries again: the broker is gone"
    client.close()
    with pytest.raises(Refused, match="closed meanwhile"):
        calling.result(60)


def test_two_threads_may_close_a_client_and_what_is_queued_is_published(url: str, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    client.create_subscription(TOPIC, "billing")
    client.set_policies(TOPIC, backlog_messages_max=1)
    closed = pydanube.connect_blocking(url).open()
    producer = closed.producer(TOPIC).open()
    producer.send(b"fits")
    producer.send_nowait(b"has to wait")
    first = in_a_thread(closed.close)
    with pytest.raises(Refused, match="client is closed"):
        make_producers(closed)
    second = in_a_thread(closed.close)
    assert wait([first, second], timeout=0.1).done == set(), "both wait for what is queued"
    client.clear_backlog(TOPIC, "billing")
    assert (first.result(60), second.result(60)) == (None, None)
    assert client.partitions(TOPIC)[0].end_offset == 2


def make_producers(client: BlockingClient) -> None:
    """Make producers until that raises, because the client is being closed."""
    for _ in range(1_000_000):
        client.producer(TOPIC)


def test_closing_what_was_never_opened_does_nothing(client: BlockingClient) -> None:
    pydanube.connect_blocking("danube://127.0.0.1:1").close()
    client.producer(TOPIC).close()


def test_a_client_that_cannot_connect_leaves_no_thread() -> None:
    with pytest.raises(Unavailable), pydanube.connect_blocking("danube://127.0.0.1:1", timeout=0.1):
        pass
    with pytest.raises(Refused, match="not open"):
        pydanube.connect_blocking("danube://127.0.0.1:1").list_topics()


def test_it_may_be_used_where_a_loop_is_running(url: str) -> None:
    """As in a notebook."""

    async def cell() -> list[str]:
        with pydanube.connect_blocking(url) as client:
            return client.list_namespaces()

    assert asyncio.run(cell()) == ["default"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_has_to_connect_again(url: str, client: BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"parent")
        uses = [lambda: producer.send(b"x"), lambda: producer.send_nowait(b"x"), producer.close, client.close]
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # it hangs rather than fails if this is broken
            with suppress(BaseException):
                for use in uses * 2:
                    with pytest.raises(Refused, match="connect again in the child"):
                        use()
                with pydanube.connect_blocking(url) as own, own.producer(TOPIC) as mine:
                    mine.send(b"child")
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(b"parent again").offset == 2


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (Client, BlockingClient),
        (Producer, BlockingProducer),
        (Consumer, BlockingConsumer),
        (Reader, BlockingReader),
        (DeadLetters, BlockingDeadLetters),
        (Topics, BlockingTopics),
        (Namespaces, BlockingNamespaces),
        (Subscriptions, BlockingSubscriptions),
        (Storage, BlockingStorage),
        (Schemas, BlockingSchemas),
        (Access, BlockingAccess),
    ],
)
def test_the_surface_is_the_same(asynchronous: type, blocking: type) -> None:
    """Every public name of the async form is there, and methods have the same parameters."""
    names = {name for kind in asynchronous.__mro__ for name in vars(kind) if not name.startswith("_")}
    for name in names:
        public = inspect.getattr_static(asynchronous, name)
        assert hasattr(blocking, name), name
        if inspect.isfunction(public):
            wanted = list(inspect.signature(public).parameters)
            assert list(inspect.signature(getattr(blocking, name)).parameters) == wanted, name


def test_importing_the_package_is_light_and_everything_in_it_can_be_had() -> None:
    program = """
import sys, pydanube
heavy = {"numpy", "msgspec", "asyncio", "structlog", "lz4", "zstandard", "pydanube.client"} & set(sys.modules)
assert not heavy, heavy
for name in pydanube.__all__:
    getattr(pydanube, name)
assert pydanube.testing.broker
try:
    pydanube.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_closing_tells_that_queued_messages_were_not_published() -> None:
    with testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC)
        client.create_subscription(TOPIC, "billing")
        client.set_policies(TOPIC, backlog_messages_max=1)
        producer = client.producer(TOPIC, timeout=0.5).open()
        producer.send(b"fits")
        producer.send_nowait(b"does not")
        with pytest.raises(Full, match="1 queued message was not published"):
            producer.close()


def test_closing_tells_that_a_producer_was_fenced() -> None:
    with testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        former = client.producer(TOPIC, name="till-1").open()
        with client.producer(TOPIC, name="till-1"):
            former.send_nowait(b"never")
            with pytest.raises(StaleEpoch, match="1 queued message was not published"):
                former.close()


def test_a_signal_handler_may_use_the_client_during_another_call() -> None:
    with testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        with client._thread._lock:  # where the signal came
            client.create_topic(TOPIC)
        assert client.list_topics() == [TOPIC]


def test_a_client_says_whether_it_was_never_opened_or_closed() -> None:
    with testing.broker_thread() as url:
        client = pydanube.connect_blocking(url)
        with pytest.raises(Refused, match=r"^this client is not open yet: use `with`, or call open\(\)$"):
            client.list_topics()
        with client:
            producer = client.producer(TOPIC).open()
        for call in (client.list_topics, lambda: producer.send(b"late"), lambda: producer.send_nowait(b"late")):
            with pytest.raises(Refused, match=r"^this client is closed$"):
                call()


def test_a_producer_that_is_not_open_queues_nothing() -> None:
    with testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        producer = client.producer(TOPIC)
        for call in (producer.send, producer.send_nowait):
            with pytest.raises(Refused, match=r"^this producer is not open yet: use `with` "):
                call(b"early")
        producer.open().close()
        for call in (producer.send, producer.send_nowait):
            with pytest.raises(Refused, match=r"^this producer is closed$"):
                call(b"late")


def test_a_timeout_that_is_no_number_is_called_that() -> None:
    with pytest.raises(Invalid, match=r"^timeout='5' is not a number: use 0.001 to 1e"):
        pydanube.connect_blocking("danube://127.0.0.1:6655", timeout="5").open()  # type: ignore[arg-type]
