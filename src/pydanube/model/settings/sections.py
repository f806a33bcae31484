"""The sections of the settings: tables of the file, each with the settings of one part of a broker.

A part of the broker takes the sections that it needs. A field that `setting` makes is a setting; any other is the same
for all users, and only tests choose another value. `Settings` checks its sections; on their own they are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydanube.model.cluster import Network
from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MESSAGE_BYTES_MAX, MIB
from pydanube.model.names import TopicName
from pydanube.model.policies import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from pydanube.model.text import Choice, Flag, Number, Size
from pydanube.model.topics import AckLevel
from pydanube.model.webhooks import Webhook

from .kinds import (
    ACK_LEVEL,
    ADDRESS,
    CLAIM,
    CLAIM_VALUE,
    CLIENT_CERTIFICATES_OR_EMPTY,
    HOST,
    HOSTS,
    JWKS_URL,
    MAY_HOLD_SECRETS,
    METADATA_URL,
    NETWORKS,
    NODE_NAME,
    OPTIONAL_PATH,
    ORIGINS,
    PORT,
    PRINCIPALS,
    RULES,
    STORE_URL,
    TOPIC,
    TRACES_URL,
    USER_NAME,
    OptionsKind,
    OrEmpty,
    PathKind,
    Secret,
    ValueKind,
    WebhooksKind,
)
from .words import CLIENT_CERTIFICATES, LOG_LEVELS, OFF

GIB: Final = 1024 * MIB
_DAY_S: Final = 24 * 3600


def setting(default: Any, kind: ValueKind, meaning: str) -> Any:
    """Return the field of a setting: its default (or a type to call for it), the kind of its values, its help text.

    A value that may hold a secret is not in the representation of its section.
    """
    metadata, is_shown = {"kind": kind, "meaning": meaning}, not isinstance(kind, MAY_HOLD_SECRETS)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata, repr=is_shown)
    return field(default=default, metadata=metadata, repr=is_shown)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file."""

    section: ClassVar[str]

    @classmethod
    def settings(cls) -> list[tuple[str, Field[Any]]]:
        """Return the settings by their keys."""
        return [(f"{cls.section}.{one.name}", one) for one in fields(cls) if one.metadata]

    def checked(self) -> Self:
        """Return the section with each value read by its kind: a size may be given as text such as "64MiB". Raises
        Invalid for a value that is not allowed."""
        values = {
            one.name: read_setting(key, kind_of(one), getattr(self, one.name), "") for key, one in self.settings()
        }
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class ServerSettings(Section):
    section: ClassVar[str] = "server"
    data_dir: Path = setting(Path("danube-data"), PathKind(), "Where everything is kept; one broker per directory.")
    host: str = setting("127.0.0.1", HOST, "The address of the listeners.")
    port: int = setting(6655, PORT, "The native protocol. 0 chooses a free port, here and below.")
    grpc_port: int = setting(6650, PORT, "The Danube gRPC API.")
    admin_port: int = setting(50051, PORT, "The Danube gRPC admin API.")
    http_port: int = setting(8650, PORT, "HTTP: REST, metrics, health and the schema registry.")
    http: bool = setting(True, Flag(), "Whether there is an HTTP listener.")
    advertised: str = setting("", ADDRESS, "What clients are told to connect to, host:port; empty: host and port.")
    advertised_inside: str = setting(
        "", ADDRESS, "What other brokers and clients in the networks `inside` are told; empty: the same as all."
    )
    inside: tuple[Network, ...] = setting((), NETWORKS, "Networks whose clients are told advertised_inside.")
    name: str = setting("", NODE_NAME, "What this broker is called, unique in its cluster; empty: broker-1.")


@dataclass(frozen=True, slots=True)
class LogSettings(Section):
    section: ClassVar[str] = "log"
    directory: Path | None = setting(None, OPTIONAL_PATH, "Where the write-ahead log is; empty: `wal` in the data_dir.")
    file_bytes: int = setting(128 * MIB, Size(64 * KIB, 4 * GIB), "A log file is closed when it has grown to this.")
    group_bytes_max: int = setting(8 * MIB, Size(4 * KIB, GIB), "Bytes written and synced together at most.")
    lazy_sync_ms: int = setting(100, Number(1, 60_000), "What does not wait for a sync is synced after this long.")
    loop_write_bytes_max: int = 16 * KIB
    """A body up to this size is written by the event loop itself while the log thread is idle. 0: never."""
    fill_bytes: int = 1 * MIB
    """Under light load, zeros are written this far ahead of the log's end: a sync that does not make the file longer
    takes half the time. 0: never."""
    fill_below_bytes: int = 16 * KIB
    """Load is light after a group smaller than this, with no mail waiting after it."""
    written_sync_ms: int = 1_000
    cure_ms: int = 1_000
    """How often a failed disk is tried again."""
    scan_bytes: int = 4 * MIB
    """How much recovery reads at a time."""
    read_bytes: int = 4 * MIB
    """How much is read at a time for consumers; a larger record is read whole."""
    read_gap_bytes: int = 16 * KIB
    """Two wanted records are read with one call when at most this many bytes of other ledgers lie between them."""
    index_cache_bytes: int = 32 * MIB
    """Size of the in-memory cache of the indexes of closed files."""
    open_files_max: int = 64
    """How many file handles are kept open for reading."""
    spare_files_max: int = 2
    """How many released files are kept, to be used again as new files."""
    reader_threads: int = 2


@dataclass(frozen=True, slots=True)
class MetadataSettings(Section):
    section: ClassVar[str] = "metadata"
    path: Path | None = setting(None, OPTIONAL_PATH, "The metadata database; empty: `metadata.db` in the data_dir.")
    url: str = setting("", METADATA_URL, "An etcd that holds the metadata, instead of `path`; needs the extra `etcd`.")
    tls: bool = setting(False, Flag(), "Whether connections to etcd are encrypted; with a ca_file they always are.")
    ca_file: Path | None = setting(
        None, OPTIONAL_PATH, "Certificates (PEM) that etcd's must be signed by; empty: those of the system."
    )
    cert_file: Path | None = setting(None, OPTIONAL_PATH, "The certificate (PEM) that this broker shows to etcd.")
    key_file: Path | None = setting(None, OPTIONAL_PATH, "The private key (PEM) of cert_file.")
    user: str = setting("", USER_NAME, "The user of etcd; empty: none.")
    password: str = setting("", Secret(), "Its password; better in the environment than in a file.")
    timeout_ms: int = setting(
        10_000, Number(1_000, 600_000), "How long a request to etcd may take, all attempts together."
    )


@dataclass(frozen=True, slots=True)
class ClusterSettings(Section):
    section: ClassVar[str] = "cluster"
    session_s: int = setting(
        10,
        Number(2, 600),
        "A broker that etcd has not heard from for this long counts as gone.",
    )
    drain_s: int = setting(
        30,
        Number(0, 3600),
        "A broker that is stopped has this long to give its partitions to others, where others can go on with them.",
    )
    zone: str = setting(
        "", NODE_NAME, "The zone (rack, data centre) of this broker: partitions of a topic are spread over zones."
    )


@dataclass(frozen=True, slots=True)
class AuthSettings(Section):
    section: ClassVar[str] = "auth"
    enabled: bool = setting(False, Flag(), "Whether callers must show credentials, and may do only what a role allows.")
    super_users: tuple[str, ...] = setting(
        ("user:admin",), PRINCIPALS, "Principals, as type:name, that may do everything."
    )
    jwks_file: Path | None = setting(
        None,
        OPTIONAL_PATH,
        "The public keys of JWTs, a JWKS; read again when it changes. Needs the extra `auth`.",
    )
    jwks_url: str = setting("", JWKS_URL, "The same at a URL with https, instead of jwks_file.")
    jwks_ca_file: Path | None = setting(
        None,
        OPTIONAL_PATH,
        "Certificates (PEM) that the server of jwks_url must be signed by; empty: the system's.",
    )
    jwks_refresh_s: int = setting(300, Number(1, 86_400), "How often jwks_url is read.")
    jwks_stale_s: int = setting(
        86_400, Number(1, 31_536_000), "For how long known keys are used when they cannot be read any more."
    )
    jwks_allow_plain: bool = setting(False, Flag(), "Whether jwks_url may be http to another machine.")
    issuer: str = setting("", CLAIM_VALUE, "What `iss` of a JWT must be; needed with a JWKS.")
    audience: str = setting("", CLAIM_VALUE, "What `aud` of a JWT must name; needed with a JWKS.")
    leeway_s: int = setting(10, Number(0, 300), "How many seconds clocks may differ when a JWT is checked.")
    name_claim: str = setting("sub", CLAIM, "The claim of a JWT that is the name of the user.")
    groups_claim: str = setting(
        "groups", CLAIM, "The claim of a JWT with groups; dots lead into it: realm_access.roles. Empty: none."
    )
    secret: str = setting("", Secret(), "The secret of Danube's tokens (HS256), 32 bytes or more; empty: none.")
    secret_file: Path | None = setting(None, OPTIONAL_PATH, "The file with the secret, instead of `secret`.")
    certificate_rules: tuple[str, ...] = setting(
        (), RULES, "Whom client certificates stand for: `SAN PATTERN => TYPE:NAME` or `subject ...`."
    )
    cluster_token: str = setting(
        "", Secret(), "What the brokers of a cluster show to each other, 32 characters or more; empty: none."
    )
    cluster_token_file: Path | None = setting(
        None, OPTIONAL_PATH, "The file with the cluster token, instead of `cluster_token`."
    )
    failures_max: int = setting(
        20, Number(1, 1_000_000), "Wrong credentials from one address in a minute, before it is refused for a while."
    )
    failures_block_s: int = setting(30, Number(1, 86_400), "How long such an address is refused.")
    allow_plaintext: bool = setting(False, Flag(), "Whether credentials may cross a network without encryption.")
    allow_readable_files: bool = setting(
        False, Flag(), "Whether other users of the machine may be able to read files with secrets."
    )


@dataclass(frozen=True, slots=True)
class AuditSettings(Section):
    section: ClassVar[str] = "audit"
    enabled: bool | None = setting(
        None, OrEmpty(Flag()), "Whether audit events are recorded; empty: if auth.enabled is true."
    )
    to: str = setting("file", Choice(("file", "topic")), "Where audit events go.")
    file: Path | None = setting(None, OPTIONAL_PATH, "The file; empty: `audit.log` in the data_dir.")
    file_bytes_max: int = setting(64 * MIB, Size(64 * KIB, 4 * GIB), "A file that would grow larger is renamed.")
    files_max: int = setting(10, Number(1, 1000), "How many files are kept, with the one that is written to.")
    topic: TopicName = setting(TopicName("system", "audit"), TOPIC, "The topic; it is created with the first event.")
    sessions: bool = setting(True, Flag(), "Whether producers, consumers and readers are recorded.")


@dataclass(frozen=True, slots=True)
class TlsSettings(Section):
    section: ClassVar[str] = "tls"
    cert_file: Path | None = setting(
        None, OPTIONAL_PATH, "The broker's certificate (PEM), then those between it and its root; empty: no TLS."
    )
    key_file: Path | None = setting(
        None, OPTIONAL_PATH, "The private key (PEM) of cert_file, without a passphrase and of mode 0600."
    )
    client_ca_file: Path | None = setting(
        None, OPTIONAL_PATH, "Authorities (PEM) that certificates of clients must be signed by."
    )
    client_certificates: str = setting(
        OFF, Choice(CLIENT_CERTIFICATES), "Whether clients may or must show a certificate of client_ca_file."
    )
    peer_ca_file: Path | None = setting(
        None,
        OPTIONAL_PATH,
        "Authorities (PEM) that certificates of other brokers must be signed by; empty: client_ca_file, else the "
        "system's.",
    )
    allow_unsafe_key_mode: bool = setting(False, Flag(), "Accept a key_file that group or others can read.")
    reload_interval_s: int = setting(
        10, Number(1, _DAY_S), "How often it is checked whether these files have changed. SIGHUP checks at once."
    )


@dataclass(frozen=True, slots=True)
class TlsListenerSettings(Section):
    """What one listener has instead of the section `tls`."""

    enabled: bool = setting(True, Flag(), "Whether this listener has TLS, if it has a cert_file here or in `tls`.")
    cert_file: Path | None = setting(None, OPTIONAL_PATH, "As tls.cert_file; empty, here and below: the same.")
    key_file: Path | None = setting(None, OPTIONAL_PATH, "As tls.key_file.")
    client_ca_file: Path | None = setting(None, OPTIONAL_PATH, "As tls.client_ca_file.")
    client_certificates: str = setting("", CLIENT_CERTIFICATES_OR_EMPTY, "As tls.client_certificates.")


@dataclass(frozen=True, slots=True)
class TlsNativeSettings(TlsListenerSettings):
    section: ClassVar[str] = "tls_native"


@dataclass(frozen=True, slots=True)
class TlsGrpcSettings(TlsListenerSettings):
    section: ClassVar[str] = "tls_grpc"


@dataclass(frozen=True, slots=True)
class TlsAdminSettings(TlsListenerSettings):
    section: ClassVar[str] = "tls_admin"


@dataclass(frozen=True, slots=True)
class TlsHttpSettings(TlsListenerSettings):
    section: ClassVar[str] = "tls_http"


@dataclass(frozen=True, slots=True)
class CacheSettings(Section):
    section: ClassVar[str] = "cache"
    tail_bytes: int = setting(64 * MIB, Size(0, 1024 * GIB), "Newest batches kept in memory, over all partitions.")
    memory_topic_bytes: int = setting(
        64 * MIB, Size(64 * KIB, 1024 * GIB), "What one partition of a topic with ack level `memory` may hold."
    )


@dataclass(frozen=True, slots=True)
class LimitSettings(Section):
    section: ClassVar[str] = "limits"
    connections_max: int = setting(10_000, Number(1, 1_000_000), "Connections at the same time.")
    connections_per_address_max: int = setting(1_000, Number(1, 1_000_000), "Of these, from one address.")
    http_connections_max: int = setting(2_000, Number(1, 1_000_000), "HTTP connections, which are counted apart.")
    http_body_bytes_max: int = setting(4 * MIB, Size(KIB, GIB), "The body of one HTTP request.")
    handshake_timeout_ms: int = setting(5_000, Number(10, 600_000), "Time a new connection has to say who it is.")
    keep_alive_ms: int = setting(
        5_000,
        Number(100, 600_000),
        "A client that sends nothing this long, not even an answer to a PING, is disconnected; what it held is free. "
        "A client that hears nothing this long asks another broker who owns the partitions.",
    )
    publish_window_bytes: int = setting(
        32 * MIB, Size(64 * KIB, 4 * GIB), "Published on one connection and not yet answered."
    )
    pending_publish_bytes_max: int = setting(
        128 * MIB, Size(64 * KIB, 64 * GIB), "Published on all connections and not yet answered."
    )
    message_bytes_max: int = setting(MESSAGE_BYTES_MAX, Size(1, MESSAGE_BYTES_MAX), "The payload of one message.")
    fetch_bytes_max: int = setting(8 * MIB, Size(KIB, GIB), "Sent in answer to one fetch, if more than one batch.")
    unread_bytes_max: int = 256 * MIB
    """What was read for clients, of all listeners, and not received by them."""
    handshake_frame_bytes_max: int = 64 * KIB
    """The largest frame before the handshake is over."""
    frame_timeout_ms: int = 60_000
    """The longest time from the first byte of a frame to its last."""
    publishes_in_flight_max: int = 4_096
    """PUBLISH frames of one connection that have no answer yet; past this the connection is not read from."""
    large_frames_bytes: int = 256 * MIB
    """Memory for frames above 512 KiB that have arrived in part, of all connections."""
    requests_in_flight_max: int = 64
    """Control requests of one connection that run at once; past this the connection is not read from."""
    fetches_in_flight_max: int = 1_024
    """Fetches of one connection that run or wait; past this they are refused."""
    fetch_wait_ms_max: int = 60_000
    handles_max: int = 10_000
    """Producers and consumers of one connection."""
    write_high_bytes: int = 1 * MIB
    """While more than this waits to be sent to a client, its consumers are paused."""
    answers_bytes_max: int = 4 * MIB
    """While more than this waits to be sent to a client, it is not read from either."""

    @property
    def publish_memory_bytes(self) -> int:
        """Batches of all connections that have no answer yet; past this, publishing connections are not read from. Half
        of what the broker accepts: clients are slowed down by flow control before they are refused."""
        return self.pending_publish_bytes_max // 2

    @property
    def http_bodies_bytes_max(self) -> int:
        """The bodies of all HTTP requests that have no answer yet; past this, requests are refused."""
        return max(self.http_body_bytes_max, self.publish_memory_bytes)


@dataclass(frozen=True, slots=True)
class GrpcSettings(Section):
    section: ClassVar[str] = "grpc"
    data: bool = setting(True, Flag(), "Whether there is a listener for the Danube gRPC API; needs the extra `grpc`.")
    admin: bool = setting(True, Flag(), "Whether there is a listener for the Danube gRPC admin API; needs it too.")
    advertised: str = setting(
        "", ADDRESS, "What its clients are told to connect to, host:port; empty: the host of the native one, grpc_port."
    )
    receive_bytes_max: int = setting(
        4 * MIB, Size(KIB, GIB), "The largest message that its consumers are sent: what existing clients accept."
    )
    connections_max: int = setting(2_000, Number(2, 1_000_000), "Connections of both listeners, counted apart.")
    calls_max: int = setting(10_000, Number(1, 1_000_000), "Calls at the same time on one listener, streams included.")
    calls_per_address_max: int = setting(5_000, Number(1, 1_000_000), "Of these, from one address.")
    calls_per_connection_max: int = 1_000
    """gRPC's maximum of concurrent streams: clients wait before they send more."""
    idle_ms: int = 300_000
    """A connection without a call is closed after this time; clients open another when they need it."""


@dataclass(frozen=True, slots=True)
class HttpSettings(Section):
    section: ClassVar[str] = "http"
    advertised: str = setting(
        "", ADDRESS, "What its clients are told to connect to, host:port; empty: the host of the native one, http_port."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), HOSTS, "Further names in the header Host; the addresses of the broker are always allowed, * allows any."
    )
    consumers_max: int = setting(1_000, Number(1, 1_000_000), "Consumers over HTTP: sessions, SSE and WebSocket.")
    session_timeout_ms_max: int = setting(
        300_000, Number(1_000, 3_600_000), "The longest silence of a consumer that a client may ask for."
    )
    poll_wait_ms_max: int = setting(
        60_000, Number(1, 3_600_000), "The longest wait of a long poll that a client may ask for."
    )
    heartbeat_ms: int = setting(
        15_000, Number(100, 600_000), "How often a stream of events that has nothing to send sends a comment."
    )
    cors_origins: tuple[str, ...] = setting(
        (), ORIGINS, "Origins whose pages may use this listener from a browser; empty: none but its own."
    )
    webhooks: tuple[Webhook, ...] = setting((), WebhooksKind(), "URLs /webhooks/{name} that are bound to topics.")
    header_bytes_max: int = 32 * KIB
    """The request line and the headers of one request."""
    discarded_bytes_max: int = 16 * MIB
    """How much of an unwanted body is thrown away unparsed after the answer, so that a client that is known comes to
    read it; past this, the connection is closed."""
    body_timeout_ms: int = 30_000
    """The longest time from the end of the headers to the last byte of the body."""
    answer_timeout_ms: int = 30_000
    """A client that reads nothing of its answer for this time is disconnected."""
    keep_alive_ms: int = 60_000
    """How long a connection may wait for its next request."""


@dataclass(frozen=True, slots=True)
class TopicSettings(Section):
    section: ClassVar[str] = "topics"
    auto_create: bool = setting(True, Flag(), "Publishing to a topic that does not exist creates it.")
    ack_level: AckLevel | None = setting(
        None,
        OrEmpty(ACK_LEVEL),
        "The ack level of topics that a first publish creates; empty: `stored` in a cluster, else `durable`.",
    )
    offset_block: int = setting(
        100_000, Number(1, 1_000_000_000), "Offsets reserved at a time by `written` and `memory` topics."
    )
    lifetimes_interval_s: int = setting(
        10,
        Number(1, _DAY_S),
        "How often retention, time to live, backlog quotas and the deletion of what is unused are applied.",
    )


@dataclass(frozen=True, slots=True)
class ProducersSettings(Section):
    section: ClassVar[str] = "producers"
    remembered_max: int = setting(
        10_000, Number(1, 10_000_000), "Producers whose last sequences each partition remembers, against duplicates."
    )
    remembered_s: int = setting(7 * _DAY_S, Number(1, 3_650 * _DAY_S), "How long a silent producer is remembered.")


@dataclass(frozen=True, slots=True)
class StorageSettings(Section):
    section: ClassVar[str] = "storage"
    url: str = setting("", STORE_URL, "Where history goes; empty: the directory `objects` in the data_dir.")
    options: Mapping[str, str] = setting(dict, OptionsKind(), "What the store needs to know, credentials among it.")
    segment_bytes: int = setting(
        64 * MIB, Size(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX), "A partition that has this much in its log uploads it."
    )
    segment_age_s: int = setting(
        600,
        Number(0, 30 * _DAY_S),
        "A message is uploaded after this time at the latest, also if there is less than segment_bytes.",
    )
    state_upload_s: int = setting(
        60,
        Number(1, _DAY_S),
        "In a cluster, positions of subscriptions go to the store with each upload, and this often while they move.",
    )
    shared_below_bytes: int = setting(4 * MIB, Size(0, GIB), "Less than this shares an object with other partitions.")
    upload_bytes_per_s: int = setting(0, Size(0, 1024 * GIB), "How fast uploads may be. 0: as fast as they go.")
    shutdown_upload_s: int = setting(
        5, Number(0, 3600), "How long a broker that is stopped may upload what waits. 0: not at all."
    )
    log_keep_bytes: int = setting(
        GIB, Size(0, 1024 * GIB), "What stays in the log although it is uploaded: a warm cache."
    )
    log_bytes_max: int = setting(
        0, Size(0, 1024 * GIB), "Past this publishes are refused until uploads catch up. 0: no limit."
    )
    cache_bytes: int = setting(64 * MIB, Size(MIB, 1024 * GIB), "What was read from objects and is kept in memory.")
    grace_s: int = setting(3600, Number(0, 30 * _DAY_S), "How long objects that are no longer needed stay.")
    stage_keep_s: int = setting(_DAY_S, Number(1, 30 * _DAY_S), "How long a stage waits for the commit that names it.")
    staged_query_keep_s: int = setting(
        90 * _DAY_S, Number(1, 3650 * _DAY_S), "How long it is remembered what a query wrote last by stages."
    )
    upload_interval_s: float = 1.0
    """How often it is checked what is due for upload."""
    store_timeout_s: float = 60.0
    """Timeout of a call to the store; calls with many bytes have more time."""


@dataclass(frozen=True, slots=True)
class SliceSettings(Section):
    section: ClassVar[str] = "slices"
    in_flight_max: int = setting(4, Number(1, 64), "How many slices are on their way to the object store at once.")
    interval_ms: int = setting(
        50,
        Number(0, 60_000),
        "While a slice is on its way, the next one leaves this long after it. More: fewer puts.",
    )
    slice_bytes: int = setting(
        4 * MIB,
        Size(64 * 1024, 256 * MIB),
        "A slice of this size leaves as soon as there is room for it on the way.",
    )
    waiting_bytes_max: int = setting(
        64 * MIB, Size(MIB, 16 * GIB), "What waits for the object store, in memory; more publishes are refused."
    )
    unlisted_bytes_max: int = setting(
        4 * GIB,
        Size(MIB, 1024 * GIB),
        "Messages in slices that the catalog does not list yet; more publishes to `stored` topics are refused.",
    )
    state_interval_ms: int = setting(
        1000,
        Number(1, 60_000),
        "How long acks wait for messages to leave with; so much is delivered again after a loss.",
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings(Section):
    section: ClassVar[str] = "metrics"
    topics: bool = setting(True, Flag(), "Whether /metrics has series of topics and subscriptions.")
    series_max: int = setting(250_000, Number(0, 10_000_000), "How many of these there may be; the rest is left out.")


@dataclass(frozen=True, slots=True)
class TracingSettings(Section):
    section: ClassVar[str] = "tracing"
    endpoint: str = setting(
        "",
        TRACES_URL,
        "Where traces go, OTLP over HTTP; empty: nothing is traced. Needs the extra `otel`.",
    )
    service: str = setting("danube", NODE_NAME, "The name of this broker in traces.")


@dataclass(frozen=True, slots=True)
class LoggingSettings(Section):
    section: ClassVar[str] = "logging"
    level: str = setting("info", Choice(LOG_LEVELS), "What is logged: this and everything worse.")
    json: bool = setting(False, Flag(), "One JSON object per line, instead of text for people.")


@dataclass(frozen=True, slots=True)
class Sections:
    """All sections of the settings."""

    server: ServerSettings = field(default_factory=ServerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    tls_native: TlsNativeSettings = field(default_factory=TlsNativeSettings)
    tls_grpc: TlsGrpcSettings = field(default_factory=TlsGrpcSettings)
    tls_admin: TlsAdminSettings = field(default_factory=TlsAdminSettings)
    tls_http: TlsHttpSettings = field(default_factory=TlsHttpSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    producers: ProducersSettings = field(default_factory=ProducersSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    slices: SliceSettings = field(default_factory=SliceSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)


def default_of(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def kind_of(one: Field[Any]) -> ValueKind:
    kind: ValueKind = one.metadata["kind"]
    return kind


def read_setting(key: str, kind: ValueKind, value: object, source: str) -> Any:
    try:
        return kind.read(value)
    except ValueError:
        where = f"{source}: " if source else ""
        shown = "***" if isinstance(kind, MAY_HOLD_SECRETS) else repr(value)
        raise Invalid(f"{where}{key}={shown} is not allowed: use {kind.allowed}") from None
