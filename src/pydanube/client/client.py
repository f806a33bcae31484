"""The client: one object per cluster, from which producers, consumers and readers are made.

```python
async with pydanube.connect("danube://127.0.0.1:6655") as client:
    async with client.producer("/default/orders") as producer:
        receipt = await producer.send(b"one")
```

Everything made from one client shares its connections, one per broker. Closing the client closes what is still open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from importlib import import_module
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from weakref import WeakSet

from pydanube.client.admin.access import Access
from pydanube.client.admin.aliases import Aliases
from pydanube.client.admin.brokers import Admin
from pydanube.client.admin.dead_letters import DeadLetters
from pydanube.client.admin.schemas import Schemas
from pydanube.client.admin.storage import Storage
from pydanube.client.admin.subscriptions import Subscriptions
from pydanube.client.admin.topics import Namespaces, Topics
from pydanube.client.connection.credentials import AnyToken, ClientCredentials
from pydanube.client.connection.observing import ClientMetrics, PartitionHook
from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.connection.routing import Brokers
from pydanube.client.connection.servers import Servers, parse_servers
from pydanube.client.consuming.consumer import Consumer, ConsumerOptions
from pydanube.client.history.range_fetch import FETCH_BYTES as RANGE_FETCH_BYTES
from pydanube.client.history.range_fetch import RangeFetch, fetches
from pydanube.client.history.reader import FETCH_BYTES, Reader
from pydanube.client.positions import AnyPosition
from pydanube.client.producing.message_intake import Attributes
from pydanube.client.producing.partitioning import PartitionBy
from pydanube.client.producing.producer import Producer
from pydanube.client.producing.staged_writes import StagedWrites, StageOrigin, Stager
from pydanube.client.producing.typed_producer import TypedProducer
from pydanube.client.typed.registration import Registration
from pydanube.client.typed.schema_sources import SchemaSource, value_type_of
from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.writer_schemas import WriterSchemas
from pydanube.codec.batch import Codec
from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import BATCH_BYTES_MAX, KIB, MIB
from pydanube.model.names import TopicName
from pydanube.model.positions import LATEST
from pydanube.model.schemas import SchemaVersion, parse_subject
from pydanube.model.topics import SubscriptionTypeName
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.environment import URL_VARIABLE, broker_url, client_tls
from pydanube.runtime.randomness import seeded
from pydanube.runtime.tls import ClientTls

from .arguments import (
    ConsumerArguments,
    GatherArguments,
    ProducerArguments,
    ReadArguments,
    ReaderArguments,
    RequestArguments,
    TypedProducerArguments,
)
from .lifecycle import Openable
from .opentelemetry_metrics import client_closed, client_opened
from .profiles import choose_profile, with_tls_of_profile
from .replies import Reply
from .requesting import Requester
from .settings import AccessName, CompressionName, ConsumerSettings, ProducerSettings, check_count, check_number

if TYPE_CHECKING:
    from pydanube.client.tables.topic_batches import TopicBatches
    from pydanube.client.tables.topic_rows import TopicRows

OpenableT = TypeVar("OpenableT", bound=Openable)
T = TypeVar("T")


class Client(Aliases, Admin, StagedWrites):
    """A connection to a cluster. Made by `connect`; belongs to the loop it was opened on.

    producer, consumer, reader      send messages; receive them through a subscription; read them by offset
    request, gather                 send a request, and wait for its reply, or for several
    read, read_batches              read a topic as a table
    topics, namespaces, subscriptions, dead_letters     what there is: create, describe, change, delete
    schemas, storage, access        the schema registry; object storage; roles, keys and quotas
    describe_broker, describe_cluster, describe_upgrade, finish_upgrade     the brokers
    drain_broker, resume_broker, remove_broker
    stager, commit_stages, staged_queries, forget_staged_query      writes that become visible together
    metrics, servers, cluster       what this client did, and where
    """

    _what = "client"

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = 30.0,
        clock: Clock | None = None,
        token: AnyToken | None = None,
        api_key: AnyToken | None = None,
        token_file: str | PathLike[str] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """`tls` None: what the environment says."""
        super().__init__()
        check_number("timeout", timeout, 0.001, 1e6)
        self.url, servers = _where(url)
        self._timeout = timeout
        self.reach_seconds = timeout
        """How long opening tries to reach a broker; requests have the whole timeout after that."""
        if tls is not None and not servers.is_encrypted:
            raise Invalid(f"options of TLS belong to a URL with TLS: write {_with_tls(servers)}")
        credentials = ClientCredentials.choose(token, api_key, token_file)
        self._brokers = Brokers(servers, clock or SystemClock(), seeded(), timeout, credentials, tls or client_tls())
        self._made: WeakSet[Openable] = WeakSet()
        self._writer_schemas = WriterSchemas(self.schemas, self._brokers.clock)
        self._requester = Requester(self._brokers, self.schemas)

    def _describe(self) -> str:
        return f"{self.url} {self._state}"

    @property
    def cluster(self) -> str:
        """The identity of the cluster, once the client is open. A broker that starts without data makes a new one."""
        return self._brokers.cluster

    @property
    def servers(self) -> str:
        """The listed addresses and those of other brokers that the client has learned, as `connect` takes them; HTTP
        addresses stay as they are, because they tell where the brokers are."""
        return self._brokers.servers

    def metrics(self) -> ClientMetrics:
        """Return a copy of this client's counters: connections, partitions, messages published and received.

        A program that imported `opentelemetry.metrics` before the client was opened exports them as `danube.client.*`.
        """
        return replace(self._brokers.metrics)

    # -- producers, consumers, readers ---------------------------------------------------------------------------------

    @overload
    def producer(
        self, topic: str, *, schema: SchemaVersion | None = None, **arguments: Unpack[ProducerArguments]
    ) -> Producer[bytes]: ...

    @overload
    def producer(self, topic: str, *, schema: type[T], **arguments: Unpack[TypedProducerArguments]) -> Producer[T]: ...

    @overload
    def producer(
        self, topic: str, *, schema: SchemaSource, **arguments: Unpack[TypedProducerArguments]
    ) -> Producer[Any]: ...

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        access: AccessName = "shared",
        partition_by: PartitionBy = "key",
        compression: CompressionName | None = None,
        batch_bytes: int = 256 * KIB,
        batch_messages: int = 10_000,
        linger_ms: float = 5.0,
        in_flight_batches: int = 64,
        queue_messages: int = 100_000,
        queue_bytes: int = 64 * MIB,
        timeout: float | None = None,
        refresh_seconds: float = 5.0,
        create_topic: bool = True,
        on_partition: PartitionHook | None = None,
        schema: type[Any] | SchemaSource | SchemaVersion | None = None,
        subject: str | None = None,
        register_schema: bool = True,
        enforce: bool = False,
    ) -> Producer[Any]:
        """Return a producer for one topic, to be opened with `async with`.

        name                resumes the identity of that name: a producer that holds it already is fenced (StaleEpoch)
        access              "exclusive": no other producer may publish to the topic. Producers that published to it
                            before are fenced (StaleEpoch from send and flush, for good), and shared producers are
                            refused while it is open
        partition_by        "key": messages of one key go to one partition, those without a key round robin (by batch);
                            "round-robin": all messages round robin; a number: that partition only; or a function
                            (key, payload, partitions) -> number. When partitions are added, some keys move to other
                            partitions, and the order of such a key does not hold across that moment
        compression         "lz4", "zstd", or None
        batch_bytes, batch_messages     a batch is closed when it reaches either
        linger_ms           the longest a message waits for its batch to fill while earlier batches are in flight
        in_flight_batches   batches per partition that may be unanswered
        queue_messages, queue_bytes     what may wait or be unanswered; send waits for room, send_nowait raises Full
        timeout             seconds until an unanswered message fails with Unavailable (default: the client's)
        refresh_seconds     how often it checks whether the topic has more partitions
        create_topic        whether a topic that does not exist is created
        on_partition        a function that is called with a `PartitionEvent` when a partition is assigned, disconnected
                            or revoked
        schema              what is sent: a msgspec Struct, a dataclass, a pydantic model, a generated protobuf class,
                            str, int, float or bytes, a dict with an Avro schema or a JSON Schema, or a
                            SchemaDefinition. A SchemaVersion, which `client.schemas.get` returns: bytes that are
                            encoded with that version already. None: bytes, without a schema. The first producer with a
                            schema binds the topic to its subject
        subject             where the schema is registered. None: the subject that the topic is bound to, or else the
                            name of the topic
        register_schema     False: the schema has to be registered already, or opening raises NotFound
        enforce             True: a topic that is not bound yet is bound with the policy "enforce", so that the broker
                            refuses what does not fit; needs the permission to administer the topic
        """
        settings = ProducerSettings(
            access=access,
            refresh_seconds=refresh_seconds,
            name=name or "",
            codec=Codec.NONE if compression is None else Codec.parse(compression),
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            linger_ms=linger_ms,
            in_flight_batches=in_flight_batches,
            queue_messages=queue_messages,
            queue_bytes=queue_bytes,
            timeout=self._timeout if timeout is None else timeout,
            on_partition=on_partition,
        )
        if schema is None or isinstance(schema, SchemaVersion):
            if subject is not None or not register_schema or enforce:
                told = "subject, register_schema and enforce belong to a producer with a schema that may be registered"
                raise Invalid(told)
            if schema is not None:
                settings = replace(settings, subject=schema.subject, schema=(schema.schema_id, schema.version))
            return self._keep(Producer(self._brokers, topic, settings, create_topic, partition_by))
        registration = Registration(
            value_type_of(schema),
            None if subject is None else parse_subject(subject),
            register_schema,
            self.schemas,
            enforce,
        )
        return self._keep(TypedProducer(self._brokers, topic, settings, create_topic, partition_by, registration))

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: None = None, **arguments: Unpack[ConsumerArguments]
    ) -> Consumer[bytes]: ...

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: type[T], **arguments: Unpack[ConsumerArguments]
    ) -> Consumer[T]: ...

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: SchemaSource, **arguments: Unpack[ConsumerArguments]
    ) -> Consumer[Any]: ...

    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        subscription: str,
        type: SubscriptionTypeName | None = None,  # noqa: A002  the word of the contract
        start: AnyPosition = LATEST,
        name: str | None = None,
        priority: int = 0,
        key_filters: Iterable[str] = (),
        failure_policy: FailurePolicy | None = None,
        ack_timeout: float | None = None,
        prefetch_messages: int = 10_000,
        prefetch_bytes: int = 16 * MIB,
        ack_linger_ms: float = 5.0,
        refresh_seconds: float = 5.0,
        create_topic: bool = False,
        on_partition: PartitionHook | None = None,
        schema: type[Any] | SchemaSource | None = None,
    ) -> Consumer[Any]:
        """Return a consumer of one topic, of several, or of all that match a pattern such as ``/default/orders-*``.

        subscription        created if it does not exist, and durable once the consumer is open
        type                "exclusive": one consumer, in order. "failover": one active consumer, in order, others stand
                            by. "shared": each message goes to one of the consumers. "key-shared": the messages of a key
                            go to one of the consumers, in order. None: the type of the subscription, or exclusive for a
                            new one
        start               where a new subscription starts; an existing one continues at its cursor, see `seek`
        name                of this consumer; it takes over from a connected consumer of the same name
        priority            of failover consumers the one with the lowest number (0 and up) is active; the others stand
                            by, ordered by priority, then name
        key_filters         of a key-shared consumer: globs such as "user-*"; it gets the keys that match any of them
        failure_policy      of a new subscription: when and how often a nacked message is redelivered, and what
                            happens to it then
        ack_timeout         seconds after which a received message that was neither acked nor nacked is redelivered.
                            None: as the failure policy of the subscription says, by default never
        prefetch_messages, prefetch_bytes   what the broker may send ahead, over all partitions
        ack_linger_ms       how long acks are collected before they are sent
        refresh_seconds     how often it looks for new partitions, and for new topics that match the pattern; those are
                            read from their beginning
        create_topic        whether named topics that do not exist are created
        on_partition        a function that is called with a `PartitionEvent` when a partition is assigned, active (its
                            first messages arrived), disconnected or revoked
        schema              what `message.value()` returns, as in `producer`. Messages that were written with another
                            version of the schema are converted to this one. None: bytes. It is not registered
        """
        settings = ConsumerSettings(
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            ack_linger_ms=ack_linger_ms,
            refresh_seconds=refresh_seconds,
            timeout=self._timeout,
            on_partition=on_partition,
        )
        options = ConsumerOptions(
            subscription=subscription,
            type=type,
            start=start,
            name=name,
            priority=priority,
            key_filters=key_filters,
            failure_policy=failure_policy,
            ack_timeout=ack_timeout,
            create_topic=create_topic,
        )
        return self._keep(Consumer(self._brokers, topic, options, settings, self._value_reader(schema)))

    def _value_reader(self, schema: type[Any] | SchemaSource | None) -> ValueReader[Any] | None:
        return None if schema is None else ValueReader(value_type_of(schema), self._writer_schemas)

    # -- requests ----------------------------------------------------------------------------------------------------

    @overload
    async def request(
        self, topic: str, payload: object, *, answer: None = None, **arguments: Unpack[RequestArguments]
    ) -> Reply[bytes]: ...

    @overload
    async def request(
        self, topic: str, payload: object, *, answer: type[T], **arguments: Unpack[RequestArguments]
    ) -> Reply[T]: ...

    @overload
    async def request(
        self, topic: str, payload: object, *, answer: SchemaSource, **arguments: Unpack[RequestArguments]
    ) -> Reply[Any]: ...

    async def request(
        self,
        topic: str,
        payload: object,
        *,
        timeout: float | None = None,
        key: str | None = None,
        attributes: Attributes | None = None,
        schema: type[Any] | SchemaSource | None = None,
        answer: type[Any] | SchemaSource | None = None,
    ) -> Reply[Any]:
        """Publish a request to a topic, wait for the reply of a consumer (`consumer.respond`), and return it.

        payload     bytes, or a value: its schema is registered as by a producer with `schema=type(payload)`
        timeout     seconds to wait, from now on (default: the client's)
        schema      of the payload, where that is not its class; see `producer`
        answer      what `reply.value()` returns: a class, or a schema. None: the payload of the reply

        On a topic that is not reliable, the request is delivered at most once. On a reliable one it may be carried out
        more than once, and after the timeout; the caller gets one reply at most. While no consumer is attached to a
        topic that is not reliable, the request waits for one.

        Raises TimeoutError if there was no reply in time, RequestFailed if the responder answered with an error, and
        Unavailable if no consumer could get the request, or the broker was lost. Cancelled, it may be carried out.
        """
        self._check_open()
        seconds = self._timeout if timeout is None else timeout
        question = await self._requester.question(topic, payload, seconds, key, attributes, schema, answer)
        return await self._requester.request(question)

    @overload
    async def gather(
        self, topic: str, payload: object, *, answer: None = None, **arguments: Unpack[GatherArguments]
    ) -> list[Reply[bytes]]: ...

    @overload
    async def gather(
        self, topic: str, payload: object, *, answer: type[T], **arguments: Unpack[GatherArguments]
    ) -> list[Reply[T]]: ...

    @overload
    async def gather(
        self, topic: str, payload: object, *, answer: SchemaSource, **arguments: Unpack[GatherArguments]
    ) -> list[Reply[Any]]: ...

    async def gather(
        self,
        topic: str,
        payload: object,
        *,
        replies_max: int = 1_000,
        timeout: float | None = None,
        key: str | None = None,
        attributes: Attributes | None = None,
        schema: type[Any] | SchemaSource | None = None,
        answer: type[Any] | SchemaSource | None = None,
    ) -> list[Reply[Any]]:
        """Publish a request that several consumers answer, and return their replies: those of each subscription, and
        all that one consumer sends. It ends after `replies_max` replies, or when `timeout` has passed.

        A reply with an error is among them: see `Reply.error`. Otherwise as `request`; no reply at all is no error.
        """
        self._check_open()
        seconds = self._timeout if timeout is None else timeout
        question = await self._requester.question(topic, payload, seconds, key, attributes, schema, answer)
        return await self._requester.gather(question, replies_max)

    @overload
    def reader(self, topic: str, *, schema: None = None, **arguments: Unpack[ReaderArguments]) -> Reader[bytes]: ...

    @overload
    def reader(self, topic: str, *, schema: type[T], **arguments: Unpack[ReaderArguments]) -> Reader[T]: ...

    @overload
    def reader(self, topic: str, *, schema: SchemaSource, **arguments: Unpack[ReaderArguments]) -> Reader[Any]: ...

    def reader(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: AnyPosition = LATEST,
        end: AnyPosition | None = None,
        fetch_bytes: int = FETCH_BYTES,
        schema: type[Any] | SchemaSource | None = None,
    ) -> Reader[Any]:
        """Return a reader of one partition, without a subscription.

        start               where to begin
        end                 iterating stops before this offset or time; "latest": at the end that the partition has
                            when the reader is opened; None: never, it waits for new messages
        schema              what `message.value()` returns, as in `consumer`
        """
        values = self._value_reader(schema)
        return self._keep(Reader(self._brokers, topic, partition, start, end, fetch_bytes, values))

    async def read(self, topic: str, **arguments: Unpack[ReadArguments]) -> TopicRows:
        """Read a topic as a table: what is stored in all its partitions, ordered by partition and offset.

        The columns are those of messages (topic, partition, offset, append_time, publish_time, key, payload,
        attributes, producer, schema_id, schema_version). Of a topic that is bound to a schema, they are the first six
        and the fields of the schema. A field `key` hides the column `key` of messages, which is `_key` then.

        start, end          offsets or append times; without them, everything that is stored now
        columns             the columns to return, in this order. None: as said above
        where               which rows to return: [("amount", ">", 100), ("key", "in", ["a", "b"])]. All conditions must
                            hold; of a list of such lists, those of one. Operators are = != < <= > >= in, not in.
                            Conditions on partition, offset and append_time also limit what is read
        errors              what happens to a message that cannot be decoded. "raise": Invalid names it. "skip": it is
                            left out. "keep": its fields are null, the column payload has its bytes, and decode_error
                            the reason. `undecoded` of the result counts them
        decode              False: payloads are bytes, also where a schema is bound to the topic
        schema_version      the version whose fields become columns. None: the one that the topic is pinned to, or the
                            newest; older messages are converted to it
        direct_read         "auto": ranges of 20,000 offsets and more are read from the object store as far as they are
                            there, and from the broker if that fails; "always": fail instead; "never": from the broker
        store, store_settings       the address of the object store as this machine sees it, and its settings, such as
                            credentials. None: the broker's address, and what the environment says

        Raises Refused for a topic that is not reliable. Needs pyarrow (the extra `arrow`).
        """
        async with self.read_batches(topic, **arguments) as batches:
            return await batches.read_all()

    def read_batches(self, topic: str, **arguments: Unpack[ReadArguments]) -> TopicBatches:
        """Like `read`, but return an iterator of record batches, so that memory stays bounded. See `TopicBatches`."""
        tables = _import_tables()
        made: TopicBatches = tables.TopicBatches(self, tables.ReadRequest.parse(topic, **arguments))
        return self._keep(made)

    def fetches(self, span: RangeFetch, *, fetch_bytes: int = RANGE_FETCH_BYTES) -> AsyncGenerator[FetchAnswer, None]:
        """Yield the broker's answers for a range of offsets, not verified; see `client.history.range_fetch`."""
        check_count("partition", span.partition, 0, 1 << 31)
        check_count("fetch_bytes", fetch_bytes, 1, BATCH_BYTES_MAX)
        return fetches(self._brokers, span._replace(topic=str(TopicName.parse(span.topic))), fetch_bytes)

    def stager(self, query: str, *, run: str, batch_id: int, task: int = 0, attempt: int = 0) -> Stager:
        """Return a stager, which stores encoded batches invisibly until `commit_stages` publishes all of them, once.

        query               the name of the query that counts the batch ids; the same after a restart
        run                 one run of the query; a later run fences the earlier ones with StaleEpoch
        batch_id            counted by the query, 0 and up; a committed batch id is not committed again
        task, attempt       which task and attempt stages this share of the batch; they only identify it
        """
        return self._keep(Stager(self._brokers, StageOrigin(query, run, batch_id, task, attempt)))

    @property
    def topics(self) -> Topics:
        """Topics: create, describe, grow, truncate and delete them, and their policies."""
        return Topics(self)

    @property
    def namespaces(self) -> Namespaces:
        """Namespaces, and the policies that their topics inherit."""
        return Namespaces(self)

    @property
    def subscriptions(self) -> Subscriptions:
        """Subscriptions: create, describe and move them, their failure policies, and messages of their backlogs."""
        return Subscriptions(self)

    @property
    def schemas(self) -> Schemas:
        """The schema registry: register, read, check and delete schemas, and bind topics to them."""
        return Schemas(self)

    @property
    def storage(self) -> Storage:
        """Object storage: what is there, uploads, verification, garbage collection."""
        return Storage(self)

    @property
    def access(self) -> Access:
        """Access control: roles, bindings and API keys, who this client is, and what it may do."""
        return Access(self)

    def dead_letters(self, topic: str) -> DeadLetters:
        """Return the messages of a dead letter topic, to look at them or to send them back to their topic."""
        return DeadLetters(self, topic)

    def _keep(self, made: OpenableT) -> OpenableT:
        if self._closed:
            self._check_open()
        self._made.add(made)
        return made

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._brokers.reach(self.reach_seconds)
        client_opened(self.url, self._brokers.metrics)

    async def _finish(self, timeout: float | None) -> None:
        results = await asyncio.gather(*(made.close(timeout) for made in list(self._made)), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def _end(self) -> None:
        try:
            await self._writer_schemas.close()
        finally:
            client_closed(self._brokers.metrics)
            await self._brokers.close()


def _where(url: str | None) -> tuple[str, Servers]:
    """Return the URL, or that of the environment if it is None, and the servers that it lists. Raises Invalid."""
    if url is not None:
        return url, parse_servers(url)
    url = broker_url()
    try:
        return url, parse_servers(url)
    except Invalid as error:
        raise Invalid(f"the environment variable {URL_VARIABLE} is wrong: {error.message}") from None


def _import_tables() -> ModuleType:
    try:
        return import_module("pydanube.client.tables.topic_batches")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading a topic as a table needs {error.name}: pip install 'pydanube[arrow]'", name=error.name
        ) from error


def _with_tls(servers: Servers) -> str:
    return str(servers._replace(is_encrypted=True))


def connect(
    url: str | None = None,
    *,
    timeout: float = 30.0,
    profile: str | None = None,
    token: AnyToken | None = None,
    api_key: AnyToken | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_ca_file: str | PathLike[str] | None = None,
    tls_cert_file: str | PathLike[str] | None = None,
    tls_key_file: str | PathLike[str] | None = None,
    tls_insecure_skip_verify: bool | None = None,
) -> Client:
    """Return a client for the brokers at ``danube://host:port[,host:port...]``, to be opened with `async with`.

    ``http://host:port[,host:port...]`` names HTTP listeners of brokers, which tell where the native ones are.
    Without a URL, the first of these that is there tells where they are: the profile, the environment variable
    DANUBE_URL, the profile of DANUBE_PROFILE, the profile in use, danube://127.0.0.1:6655.
    `timeout` is how many seconds a request that may succeed later is tried again before it raises Unavailable.
    `profile` names a broker and credentials that `danube profile add` has stored.

    At most one of these tells who the client is; without any, the profile does, the environment variables DANUBE_TOKEN,
    DANUBE_API_KEY and DANUBE_TOKEN_FILE, or a profile that was not named:

    token               an API key or a JWT; the Path of a file that holds it; or a function, async or not, that returns
                        it. File and function are asked for each connection, and again before the broker stops
                        believing the last token
    api_key             the same, under the name of what it is
    token_file          the file that holds the token, as text or a path

    ``danubes://`` and ``https://`` connect with TLS, to every broker of the cluster. What is not given here is that of
    the profile, or of the environment, DANUBE_TLS_CA_FILE and so on:

    tls_ca_file         the authorities (PEM) that certificates of brokers must be signed by; else those of the system
    tls_cert_file, tls_key_file     the certificate and the key (PEM) that this client shows, where brokers ask for one
    tls_insecure_skip_verify        whether any server is believed: whoever is in between can read and change everything
    """
    if (chosen := choose_profile(profile, url)) is not None:
        url = url if url is not None else chosen.url
        if token is None and api_key is None and token_file is None:
            token, api_key, token_file = map(chosen.credentials_for(profile).get, ("token", "api_key", "token_file"))
        files = {"tls_ca_file": tls_ca_file, "tls_cert_file": tls_cert_file, "tls_key_file": tls_key_file}
        given = {name: file for name, file in files.items() if file is not None}
        tls_ca_file, tls_cert_file, tls_key_file = map(with_tls_of_profile(given, chosen.tls_files).get, files)
    given_tls = tls_ca_file, tls_cert_file, tls_key_file, tls_insecure_skip_verify
    tls = None if given_tls == (None, None, None, None) else client_tls(*given_tls)
    return Client(url, timeout=timeout, token=token, api_key=api_key, token_file=token_file, tls=tls)
