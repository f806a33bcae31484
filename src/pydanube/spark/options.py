"""Every option of the data source, parsed and checked in one place. A ReadOptions or WriteOptions is always valid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast

from pydanube.client.connection.servers import parse_servers
from pydanube.client.tables.read_types import COLUMNS, DECODED_COLUMNS
from pydanube.codec.batch import Codec
from pydanube.model.errors import Invalid
from pydanube.model.limits import KEY_BYTES_MAX, PARTITIONS_MAX, PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import OFFSET_END
from pydanube.model.schemas import parse_subject
from pydanube.model.text import Choice, Duration, Flag, Kind, Number, Size, did_you_mean
from pydanube.runtime.objects.opening import check_url
from pydanube.runtime.tls import ClientTls
from pydanube.spark.credentials import CREDENTIALS, NO_CREDENTIALS, SHOWN, SHOWN_REFUSAL, BrokerCredentials
from pydanube.spark.given_options import GivenOptions
from pydanube.spark.reading.bounds import Bound, Bounds, parse_json

if TYPE_CHECKING:
    from pydanube.spark.decoding.typed_read import TypedRead

DEFAULT_SERVERS: Final = "danube://127.0.0.1:6655"
DEFAULT_TIMEOUT_S: Final = 120.0
"""Long enough for a broker restart; after that, Spark had better retry the task on another executor."""

STORE_PREFIX: Final = "store."
"""Options with this prefix, such as ``store.access_key_id``, are passed to the object store."""

TLS: Final = ("tls.caFile", "tls.certFile", "tls.keyFile", "tls.insecureSkipVerify")
"""Files that driver and executors have at the same path, such as those that Spark distributes."""
COMMON: Final = ("servers", "topic", "timeout", *CREDENTIALS, *TLS)
READING: Final = (
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "columns",
    "keyFilter",
    "includeAttributes",
    "subscription",
    "directRead",
    "store",
    "decode",
    "schemaVersion",
    "subject",
    "onDecodeError",
    "descriptors",
)
DECODING: Final = ("schemaVersion", "subject", "onDecodeError")
"""Options that need `decode`."""
ONLY_STREAMS: Final = (
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "subscription",
    "descriptors",
)
ONLY_BATCHES: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
WRITING: Final = (
    "queryId",
    "batchId",
    "compression",
    "partitionBy",
    "createTopic",
    "producer",
    "schema",
    "schemaVersion",
)
SPARKS_OWN: Final = ("path", "checkpointLocation", "queryName")
"""Options that Spark itself adds. A path is used as the topic: ``.load("/default/orders")``."""

KAFKAS: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topic",
    "subscribepattern": "topic",
    "kafka.group.id": "subscription",
}
"""Options of Spark's Kafka source and their names here, for error messages. `subscribe` names topics there."""

DEFAULT_TRIGGER_DELAY_S: Final = 900.0
"""As in Spark's Kafka source."""

ASSIGN_FORM: Final = 'use JSON such as {"/default/orders": [0, 2], "/default/returns": [0]}'
KEY_FILTER_FORM: Final = 'use a glob such as user-*, or JSON such as ["user-*", "vip"]'

DirectRead = Literal["auto", "always", "never"]
OnDecodeError = Literal["fail", "null"]
Mode = Literal["batch", "stream"]

_DIRECT_READ: Final = cast(Kind[DirectRead], Choice(("auto", "always", "never")))
_ON_DECODE_ERROR: Final = cast(Kind[OnDecodeError], Choice(("fail", "null")))
_OFFSETS: Final = Number(1, OFFSET_END - 1)
_TIMEOUT: Final = Duration(0.1, 86_400)
_VERSION: Final = Number(1, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a reader. Picklable, so that executors get the same values."""

    servers: str = DEFAULT_SERVERS
    credentials: BrokerCredentials = NO_CREDENTIALS
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Such as ``/default/orders-*``."""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The partitions to read, by topic; empty: all partitions."""
    start: Bounds | None = None
    """None: earliest for a batch, latest for a stream."""
    end: Bounds | None = None
    """None: latest."""
    min_offsets: int = 0
    """A stream waits for this many messages, but not longer than `trigger_delay_s` since its last batch."""
    trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    max_offsets: int = 0
    max_bytes: int = 0
    """Limits of one trigger of a stream; 0 here and below: no limit."""
    min_partitions: int = 0
    max_records: int = 0
    """The maximum in one task."""
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    key_filters: tuple[str, ...] = ()
    """Globs; only rows whose key matches one of them are read. Empty: all rows."""
    subscription: str = ""
    direct_read: DirectRead = "auto"
    store: str = ""
    """URL of the object store as executors reach it; empty: the URL that the broker uses."""
    store_settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Excluded from repr: they include credentials."""
    descriptors: bool = False
    """Internal, for landings: rows describe ranges, and the sink's task reads them (see `reading.descriptors`)."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """How long an operation that may succeed later is retried."""
    decode: bool = False
    """Whether payloads become the columns of the topics' schema."""
    subject: str = ""
    """The subject of that schema; empty: the one that the topics are bound to."""
    schema_version: int = 0
    """The version of that schema; 0: the newest when the query starts."""
    on_decode_error: OnDecodeError = "fail"
    typed: TypedRead | None = None
    """What tasks need to decode. The data source sets it when it makes a reader."""

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
        """Parse and check `options`. `mode` is None when it is not known yet whether this is a batch or a stream."""
        given = _RawOptions(options, (*COMMON, *READING), WRITING, "reading")
        given.check_mode(mode)
        assigned = _assigned(given)
        topics, patterns = (tuple(assigned), ()) if assigned else _topics(given.topic())
        _check_trigger(given)
        return cls(
            servers=given.servers(),
            credentials=given.credentials(),
            topics=topics,
            patterns=patterns,
            assigned=assigned,
            start=_start(given, mode),
            end=_end(given),
            min_offsets=given.read("minOffsetsPerTrigger", _OFFSETS, 0),
            trigger_delay_s=given.read("maxTriggerDelay", Duration(needs_unit=True), DEFAULT_TRIGGER_DELAY_S),
            max_offsets=given.read("maxOffsetsPerTrigger", _OFFSETS, 0),
            max_bytes=given.read("maxBytesPerTrigger", Size(1, 1 << 62), 0),
            min_partitions=given.read("minPartitions", Number(1, 1 << 20), 0),
            max_records=given.read("maxRecordsPerPartition", _OFFSETS, 0),
            fail_on_data_loss=given.read("failOnDataLoss", Flag(), True),
            columns=_columns(given),
            key_filters=_key_filters(given.text("keyFilter")),
            subscription=given.parsed("subscription", parse_subscription, ""),
            direct_read=given.read("directRead", _DIRECT_READ, "auto"),
            store=given.parsed("store", check_url, ""),
            store_settings=given.prefixed(STORE_PREFIX),
            descriptors=given.read("descriptors", Flag(), False),
            timeout_s=given.read("timeout", _TIMEOUT, DEFAULT_TIMEOUT_S),
            decode=_decode(given),
            subject=given.parsed("subject", parse_subject, ""),
            schema_version=given.read("schemaVersion", _VERSION, 0) if given.text("schemaVersion") else 0,
            on_decode_error=given.read("onDecodeError", _ON_DECODE_ERROR, "fail"),
        )

    @property
    def topic(self) -> str:
        """The topics and patterns as the user wrote them, for messages."""
        return ",".join((*self.topics, *self.patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a writer. Picklable, so that executors get the same values."""

    servers: str = DEFAULT_SERVERS
    credentials: BrokerCredentials = NO_CREDENTIALS
    topic: str = ""
    """The topic of all rows, which overrides the column `topic`; empty: every row names its own."""
    query_id: str = ""
    batch_id: int = -1
    """Identifies, with `query_id`, a batch that may be written repeatedly and counts once; -1: no such identity."""
    codec: Codec = Codec.NONE
    partition_by: str | int = "key"
    """"key", "round-robin", or the number of a partition"""
    create_topic: bool = True
    """Whether a topic that does not exist is created, where the broker allows it."""
    producer: str = "spark"
    """The producer name of the messages."""
    subject: str = ""
    """The subject whose schema encodes the columns; empty: the rows have payloads."""
    schema_version: int = 0
    """0: the version that the topic is pinned to, or the newest."""
    timeout_s: float = DEFAULT_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _RawOptions(options, (*COMMON, *WRITING), READING, "writing")
        query_id, batch_id = given.batch()
        topic = given.topic()
        compression = given.text("compression")
        return cls(
            servers=given.servers(),
            credentials=given.credentials(),
            topic="" if topic is None else str(TopicName.parse(topic)),
            query_id=query_id,
            batch_id=batch_id,
            codec=Codec.NONE if compression in (None, "none") else Codec.parse(compression),
            partition_by=_partition_by(given),
            create_topic=given.read("createTopic", Flag(), True),
            producer=given.parsed("producer", _producer, "spark"),
            subject=given.parsed("schema", parse_subject, ""),
            schema_version=_schema_version(given),
            timeout_s=given.read("timeout", _TIMEOUT, DEFAULT_TIMEOUT_S),
        )


class _RawOptions(GivenOptions):
    """The options of a reader or a writer."""

    def __init__(
        self, options: Mapping[str, str], known: tuple[str, ...], elsewhere: tuple[str, ...], purpose: str
    ) -> None:
        prefixes = [STORE_PREFIX] if "store" in known else []
        super().__init__(
            options, (*known, *SPARKS_OWN), prefixes, lambda name: _unknown(name, known, elsewhere, purpose)
        )

    def topic(self) -> str | None:
        topic, path = self.values.get("topic"), self.values.get("path")
        if topic is not None and path is not None:
            raise Invalid(f"the topic is given twice: as the option topic ({topic!r}) and as the path ({path!r})")
        return path if topic is None else topic

    def servers(self) -> str:
        return str(self.parsed("servers", parse_servers, parse_servers(DEFAULT_SERVERS)))

    def credentials(self) -> BrokerCredentials:
        return BrokerCredentials.parse(self.values, self._tls())

    def _tls(self) -> ClientTls | None:
        """Return what the options of TLS say; None: there are none, and the environment of each process counts."""
        if not any(name in self.values for name in TLS):
            return None
        if not parse_servers(self.servers()).is_encrypted:
            raise Invalid("options tls.* belong to servers with TLS: write servers as danubes://host:port")
        ca_file, cert_file, key_file = (self.values.get(name, "") for name in TLS[:3])
        if bool(cert_file) != bool(key_file):
            raise Invalid("options tls.certFile and tls.keyFile belong together: give both, or neither")
        return ClientTls(ca_file, cert_file, key_file, self.read(TLS[3], Flag(), False))

    def check_mode(self, mode: Mode | None) -> None:
        for name in ONLY_STREAMS if mode == "batch" else ONLY_BATCHES if mode == "stream" else ():
            if name in self.values:
                other = "spark.readStream" if mode == "batch" else "spark.read"
                raise Invalid(f"option {name} means nothing for a {mode}: leave it out, or use {other}")


def _unknown(name: str, known: Iterable[str], elsewhere: Iterable[str], purpose: str) -> str:
    known = list(known)
    if name.lower() == SHOWN:
        return SHOWN_REFUSAL
    if (documented := {one.lower(): one for one in elsewhere}.get(name.lower())) is not None:
        return f"option {documented!r} is not for {purpose}: leave it out"
    if (here := KAFKAS.get(name.lower())) in known:
        hint = ", with a glob such as /default/orders-*" if name.lower() == "subscribepattern" else ""
        return f"option {name!r} is Kafka's: here it is {here!r}{hint}"
    return f"option {name!r} is unknown: {did_you_mean(name, known)}"


# -- options of reading ------------------------------------------------------------------------------------------------


def _topics(text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the option into topic names and patterns, without duplicates."""
    names = list(dict.fromkeys(one.strip() for one in (text or "").split(",") if one.strip()))
    if not names:
        raise Invalid(
            "option topic is missing: name a topic such as /default/orders, several with commas between them, or a "
            "pattern such as /default/orders-*"
        )
    patterns = [one for one in names if any(character in one for character in "*?[")]
    for one in patterns:
        if one.count("/") != 2 or not one.startswith("/"):
            raise Invalid(
                f"option topic: the pattern {one!r} is not of the form /namespace/topic, as /default/orders-*"
            )
    return tuple(str(TopicName.parse(one)) for one in names if one not in patterns), tuple(patterns)


def _start(given: _RawOptions, mode: Mode | None) -> Bounds | None:
    default = Bound("latest") if mode == "stream" else Bound("earliest")
    found = _bounds(given, "starting", default)
    if mode == "batch" and found is not None and found.default.kind == "latest":
        raise Invalid("option startingOffsets is latest, behind which a batch finds nothing: use earliest or an offset")
    return found


def _end(given: _RawOptions) -> Bounds | None:
    found = _bounds(given, "ending", Bound("latest"))
    if found is not None and found.default.kind == "earliest":
        raise Invalid("option endingOffsets is earliest, before which there is nothing: use latest or an offset")
    return found


def _bounds(given: _RawOptions, which: Literal["starting", "ending"], default: Bound) -> Bounds | None:
    offsets, timestamp, by_partition = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    named = [name for name in (offsets, timestamp, by_partition) if given.text(name) is not None]
    if len(named) > 1:
        raise Invalid(f"options {' and '.join(named)} say the same thing twice: give one of them")
    for name in named:
        text = given.text(name) or ""
        if name == offsets:
            return Bounds.of_offsets(text, name, default)
        if name == timestamp:
            return Bounds.of_times(text, name)
        return Bounds.of_times_by_partition(text, name, default)
    return None


def _assigned(given: _RawOptions) -> dict[str, tuple[int, ...]]:
    """Parse the option `assign`: the partitions to read, by topic; empty if it was not given."""
    text = given.text("assign")
    if text is None:
        return {}
    if given.topic() is not None:
        raise Invalid(f"the topic is given twice: in the option assign and as {given.topic()!r}")
    if given.text("subscription") is not None:
        raise Invalid("options assign and subscription exclude each other: a subscription is on all partitions")
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parse_json(text, "assign", ASSIGN_FORM).items():
        name = str(TopicName.parse(topic))
        if not isinstance(partitions, list) or not partitions or not all(map(_is_partition, partitions)):
            raise Invalid(f"option assign says {partitions!r} for {name}: {ASSIGN_FORM}")
        assigned[name] = tuple(sorted(set(partitions)))
    if not assigned:
        raise Invalid(f"option assign names no topic: {ASSIGN_FORM}")
    return assigned


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value < PARTITIONS_MAX  # bool is a subclass of int


def _check_trigger(given: _RawOptions) -> None:
    least, most = given.read("minOffsetsPerTrigger", _OFFSETS, 0), given.read("maxOffsetsPerTrigger", _OFFSETS, 0)
    if least and most and least > most:
        raise Invalid(f"option minOffsetsPerTrigger is {least}, and maxOffsetsPerTrigger is {most}, which is less")
    if given.text("maxTriggerDelay") is not None and not least:
        raise Invalid("option maxTriggerDelay is for minOffsetsPerTrigger, which is missing: give both, or neither")


def _columns(given: _RawOptions) -> tuple[str, ...]:
    attributes = given.read("includeAttributes", Flag(), True)
    text = given.text("columns")
    if text is None:
        default = DECODED_COLUMNS if _decode(given) else COLUMNS
        return tuple(one for one in default if attributes or one != "attributes")
    if not text.strip() and _decode(given):
        return ()
    chosen = [one.strip().lower() for one in text.split(",")]
    for one in chosen:
        if one not in COLUMNS:
            raise Invalid(f"option columns names {one!r}, which no message has: {did_you_mean(one, COLUMNS)}")
        if chosen.count(one) > 1:
            raise Invalid(f"option columns names {one!r} more than once")
    if "attributes" in chosen and not attributes:
        raise Invalid("option columns names attributes, and includeAttributes is false: drop one of the two")
    if given.text("includeAttributes") is not None and attributes and "attributes" not in chosen:
        chosen.append("attributes")
    return tuple(chosen)


def _key_filters(text: str | None) -> tuple[str, ...]:
    """Parse one glob, or a JSON list of globs."""
    if text is None:
        return ()
    found: object = text
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # a glob may begin with a bracket too, but hardly with a quote in it
            if text.lstrip()[1:].lstrip().startswith('"'):
                raise Invalid(
                    f"option keyFilter begins like JSON and cannot be read ({error}): {KEY_FILTER_FORM}"
                ) from None
    globs = found if isinstance(found, list) else [found]
    for one in globs:
        if not isinstance(one, str) or not one or len(one.encode(errors="replace")) > KEY_BYTES_MAX:
            raise Invalid(f"option keyFilter says {one!r}: {KEY_FILTER_FORM}")
    if not globs:
        raise Invalid("option keyFilter is an empty list, which no key matches: leave it out, or name a key")
    return tuple(cast(list[str], globs))


def _decode(given: _RawOptions) -> bool:
    text = given.text("decode")
    if text is None or text.strip().lower() == "none":
        for name in DECODING:
            if given.text(name) is not None:
                raise Invalid(f"option {name} needs the option decode: add decode=schema, or leave it out")
        return False
    if text.strip().lower() != "schema":
        raise Invalid(f"option decode is {text!r}: use schema, or none")
    return True


# -- options of writing ------------------------------------------------------------------------------------------------


def _partition_by(given: _RawOptions) -> str | int:
    text = given.text("partitionBy")
    if text is None or text in ("key", "round-robin"):
        return text or "key"
    if text.strip().isdecimal():
        return given.read("partitionBy", Number(0, PARTITIONS_MAX - 1), 0)
    raise Invalid(f"option partitionBy is {text!r}: use key, round-robin, or the number of a partition")


def _schema_version(given: _RawOptions) -> int:
    if given.text("schemaVersion") is None:
        return 0
    if given.text("schema") is None:
        raise Invalid("option schemaVersion is for the option schema, which names the subject: give both, or neither")
    return given.read("schemaVersion", _VERSION, 0)


def _producer(text: str) -> str:
    if len(text.encode(errors="replace")) > PRODUCER_NAME_BYTES_MAX or not text.isprintable():
        raise Invalid(f"{text!r} is no name: use up to {PRODUCER_NAME_BYTES_MAX} bytes of printable text")
    return text
