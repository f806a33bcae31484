"""Every setting: its name, its default, its allowed values, and where its value came from.

A setting is `section.key`: in a TOML file the key of a table, in the environment `DANUBE_SECTION_KEY`. The command line
overrides the environment, the environment the file, and the file the default.

Invariants
    every value in a Settings, and every relation between its values, is allowed
    `load` reads the text that `describe` shows for a value as the same value
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from .metadata.etcd.place import EtcdPlace, TlsFiles, parse_members
from .model.cluster import Network
from .model.errors import Invalid
from .model.limits import KIB, MESSAGE_BYTES_MAX, MIB
from .model.names import TopicName
from .model.policies import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from .model.settings.kinds import (
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
    NODE_NAME,
    OPTIONAL_PATH,
    ORIGINS,
    PORT,
    PRINCIPALS,
    STORE_URL,
    TOPIC,
    TRACES_URL,
    USER_NAME,
    NetworksKind,
    OptionsKind,
    OrEmpty,
    PathKind,
    RulesKind,
    Secret,
    ValueKind,
    WebhooksKind,
)
from .model.text import Choice, Flag, Number, Size, nearest
from .model.topics import AckLevel
from .model.webhooks import Webhook
from .runtime.telemetry import LEVELS
from .runtime.tls import CLIENT_CERTIFICATES, OFF, ServerTls

GIB: Final = 1024 * MIB
_DAY_S: Final = 24 * 3600
_DEFAULT: Final = "default"
_FILE_SOURCE: Final = "file "
"""What the source of a value of a file begins with."""


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
    """A table of the file. Each value is read by its kind, so a size may be given as text such as "64MiB"."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for one in fields(self):
            value = _read(f"{self.section}.{one.name}", _kind(one), getattr(self, one.name), "")
            object.__setattr__(self, one.name, value)


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
    inside: tuple[Network, ...] = setting((), NetworksKind(), "Networks whose clients are told advertised_inside.")
    name: str = setting("", NODE_NAME, "What this broker is called, unique in its cluster; empty: broker-1.")


@dataclass(frozen=True, slots=True)
class LogSettings(Section):
    section: ClassVar[str] = "log"
    directory: Path | None = setting(None, OPTIONAL_PATH, "Where the write-ahead log is; empty: `wal` in the data_dir.")
    file_bytes: int = setting(128 * MIB, Size(64 * KIB, 4 * GIB), "A log file is closed when it has grown to this.")
    group_bytes_max: int = setting(8 * MIB, Size(4 * KIB, GIB), "Bytes written and synced together at most.")
    lazy_sync_ms: int = setting(100, Number(1, 60_000), "What does not wait for a sync is synced after this long.")


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
        (), RulesKind(), "Whom client certificates stand for: `SAN PATTERN => TYPE:NAME` or `subject ...`."
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
class AuditSection(Section):
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


@dataclass(frozen=True, slots=True)
class GrpcSection(Section):
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


@dataclass(frozen=True, slots=True)
class HttpSection(Section):
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
class ProducersSection(Section):
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


@dataclass(frozen=True, slots=True)
class SlicesSection(Section):
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
class MetricsSection(Section):
    section: ClassVar[str] = "metrics"
    topics: bool = setting(True, Flag(), "Whether /metrics has series of topics and subscriptions.")
    series_max: int = setting(250_000, Number(0, 10_000_000), "How many of these there may be; the rest is left out.")


@dataclass(frozen=True, slots=True)
class TracingSection(Section):
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
    level: str = setting("info", Choice(LEVELS), "What is logged: this and everything worse.")
    json: bool = setting(False, Flag(), "One JSON object per line, instead of text for people.")


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One setting as users see it: `load` reads `value` and `default` as the same values."""

    key: str
    env: str
    type: str
    """The allowed values, in words."""
    default: str
    value: str
    source: str
    """The source of the value: "default", "file danube.toml", "environment DANUBE_SERVER_PORT", "command line"."""
    help: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a broker."""

    server: ServerSettings = field(default_factory=ServerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    audit: AuditSection = field(default_factory=AuditSection)
    tls: TlsSettings = field(default_factory=TlsSettings)
    tls_native: TlsNativeSettings = field(default_factory=TlsNativeSettings)
    tls_grpc: TlsGrpcSettings = field(default_factory=TlsGrpcSettings)
    tls_admin: TlsAdminSettings = field(default_factory=TlsAdminSettings)
    tls_http: TlsHttpSettings = field(default_factory=TlsHttpSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    grpc: GrpcSection = field(default_factory=GrpcSection)
    http: HttpSection = field(default_factory=HttpSection)
    topics: TopicSettings = field(default_factory=TopicSettings)
    producers: ProducersSection = field(default_factory=ProducersSection)
    storage: StorageSettings = field(default_factory=StorageSettings)
    slices: SlicesSection = field(default_factory=SlicesSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    tracing: TracingSection = field(default_factory=TracingSection)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The source of each value that is not a default, by key."""

    def __post_init__(self) -> None:
        problems = [*self._unordered(), *self._narrow_log(), *self._shared_ports(), *self._wrong_metadata()]
        problems += self._wrong_tls()
        if problems:
            raise Invalid("; ".join(problems))

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Load settings from a file (None: no file), the environment and the command line.

        `overrides` are the values of the command line by dotted key; None means not given. Raises Invalid; its message
        names every wrong key with its value, the allowed values, and a key that was probably meant.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        problems: list[str] = []
        given = (
            *_from_file(path, problems),
            *_from_environ(environ or {}, problems),
            *_from_overrides(overrides or {}),
        )
        for key, value, source in given:
            one = _KNOWN.get(key)
            try:
                if one is None:
                    raise Invalid(f"{source}: {_unknown(key)}")
                values[key] = _read(key, _kind(one), value, source)
                sources[key] = source
            except Invalid as problem:
                problems.append(problem.message)
        if problems:
            raise Invalid("; ".join(problems))
        sections = {
            section.section: section(**{one.name: values[key] for key, one in _settings_of(section) if key in values})
            for section in _SECTIONS
        }
        return cls(**sections, sources=sources)  # type: ignore[arg-type]  # each section is under its own name

    def describe(self) -> list[SettingDescription]:
        """Describe every setting, in the order of the documentation."""
        return [
            SettingDescription(
                key=key,
                env=environment_name(key),
                type=_kind(one).allowed,
                default=_kind(one).show(_kind(one).read(_default(one))),
                value=_kind(one).show(getattr(getattr(self, section.section), one.name)),
                source=self.sources.get(key, _DEFAULT),
                help=one.metadata["meaning"],
            )
            for section in _SECTIONS
            for key, one in _settings_of(section)
        ]

    def secrets_in_files(self) -> Iterator[tuple[str, Path]]:
        """Yield every secret that a configuration file gives, by its key, and the file. Options of stores and webhooks
        count if a part of them is hidden."""
        for key, one in _KNOWN.items():
            source = self.sources.get(key, "")
            is_secret = isinstance(_kind(one), MAY_HOLD_SECRETS) and "***" in self._shown(key)
            if is_secret and source.startswith(_FILE_SOURCE):
                yield key, Path(source.removeprefix(_FILE_SOURCE))

    @property
    def has_audit(self) -> bool:
        """Whether audit events are recorded."""
        return self.auth.enabled if self.audit.enabled is None else self.audit.enabled

    @property
    def audit_path(self) -> Path:
        return self.audit.file or self.server.data_dir / "audit.log"

    @property
    def log_directory(self) -> Path:
        return self.log.directory or self.server.data_dir / "wal"

    @property
    def store_url(self) -> str:
        return self.storage.url or (self.server.data_dir.absolute() / "objects").as_uri()

    @property
    def metadata_path(self) -> Path:
        """The metadata database, where the metadata is not in etcd."""
        return self.metadata.path or self.server.data_dir / "metadata.db"

    @property
    def metadata_place(self) -> Path | EtcdPlace:
        given = self.metadata
        if not given.url:
            return self.metadata_path
        has_tls = given.tls or given.ca_file is not None or given.cert_file is not None
        tls = TlsFiles(given.ca_file, given.cert_file, given.key_file) if has_tls else None
        members, prefix = parse_members(given.url)
        return EtcdPlace(members, prefix, tls, given.user, given.password, given.timeout_ms / 1000)

    def listener_tls(self, listener: TlsListenerSettings) -> ServerTls | None:
        """Return the files of a listener, of its own section and of `tls`; None if it has no TLS."""
        pair = listener if listener.cert_file is not None else self.tls
        if not listener.enabled or pair.cert_file is None or pair.key_file is None:
            return None
        return ServerTls(
            pair.cert_file,
            pair.key_file,
            listener.client_ca_file or self.tls.client_ca_file,
            listener.client_certificates or self.tls.client_certificates,
            self.tls.allow_unsafe_key_mode,
        )

    def advertised_address(self, port: int) -> str:
        """Return the address for clients when the native listener uses `port`, which the system chose if the setting is
        0."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        return self.server.advertised or f"{host}:{port}"

    def _unordered(self) -> Iterator[str]:
        for smaller, larger in _NOT_LARGER:
            low, high = self._shown(smaller), self._shown(larger)
            if self._value(smaller) > self._value(larger):
                yield f"{smaller}={low} is larger than {larger}={high}: make {smaller} at most {larger}"

    def _narrow_log(self) -> Iterator[str]:
        """Yield a problem if the log may not hold two files: the file being written cannot be released, so such a log
        would stay full for ever."""
        limit, file_bytes = self.storage.log_bytes_max, self.log.file_bytes
        if limit and limit < 2 * file_bytes:
            yield (
                f"storage.log_bytes_max={self._shown('storage.log_bytes_max')} has no room for two files of "
                f"log.file_bytes={self._shown('log.file_bytes')}: raise it to twice that, lower log.file_bytes, or set "
                f"it to 0 for no limit"
            )

    def _shared_ports(self) -> Iterator[str]:
        taken: dict[int, str] = {}
        for key in ("server.port", "server.grpc_port", "server.admin_port", "server.http_port"):
            port = self._value(key)
            if port and port in taken:
                yield f"{key}={port} is {taken[port]} too: give every listener a port of its own, or 0 for a free one"
            taken.setdefault(port, key)

    def _wrong_metadata(self) -> Iterator[str]:
        given = self.metadata
        if (given.cert_file is None) != (given.key_file is None):
            yield "metadata.cert_file and metadata.key_file belong together: give both or none"
        try:
            if given.url:
                parse_members(given.url)
        except Invalid as problem:
            yield problem.message

    def _wrong_tls(self) -> Iterator[str]:
        listeners = (self.tls_native, self.tls_grpc, self.tls_admin, self.tls_http)
        for one in (self.tls, *listeners):
            if (one.cert_file is None) != (one.key_file is None):
                yield f"{one.section}.cert_file and {one.section}.key_file belong together: give both or none"
        unsigned = [one.section for one in listeners if _lacks_authority(self.listener_tls(one))]
        if unsigned:
            yield (
                f"{', '.join(unsigned)}: client certificates are asked for, and nothing says who signs them: set "
                f"tls.client_ca_file"
            )

    def _value(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def _shown(self, key: str) -> str:
        return _kind(_KNOWN[key]).show(self._value(key))


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _lacks_authority(files: ServerTls | None) -> bool:
    return files is not None and files.client_certificates != OFF and files.client_ca_file is None


def environment_name(key: str) -> str:
    """`log.file_bytes` is `DANUBE_LOG_FILE_BYTES`."""
    return _ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


_NOT_LARGER: Final = (
    ("log.group_bytes_max", "log.file_bytes"),
    ("limits.connections_per_address_max", "limits.connections_max"),
    ("limits.message_bytes_max", "limits.pending_publish_bytes_max"),
    ("limits.publish_window_bytes", "limits.pending_publish_bytes_max"),
    ("slices.slice_bytes", "slices.unlisted_bytes_max"),
    ("slices.waiting_bytes_max", "slices.unlisted_bytes_max"),
)
"""Relations between settings: the first must not be larger than the second."""

_ENVIRONMENT_PREFIX: Final = "DANUBE_"
_NO_SETTINGS: Final = {
    "DANUBE_STORAGE_TOKEN",
    "DANUBE_TLS_CA_FILE",
    "DANUBE_TLS_CLIENT_CERT_FILE",
    "DANUBE_TLS_CLIENT_KEY_FILE",
    "DANUBE_TLS_INSECURE_SKIP_VERIFY",
}
"""Variables that are named like a setting but are read by a command itself (`danube storage serve`), or by clients."""
_SECTIONS: Final[tuple[type[Section], ...]] = tuple(
    cast(type[Section], one.default_factory) for one in fields(Settings) if one.name != "sources"
)


def _settings_of(section: type[Section]) -> list[tuple[str, Field[Any]]]:
    return [(f"{section.section}.{one.name}", one) for one in fields(section)]


_KNOWN: Final[dict[str, Field[Any]]] = {key: one for section in _SECTIONS for key, one in _settings_of(section)}
_BY_ENVIRONMENT: Final = {environment_name(key): key for key in _KNOWN}
_SECTION_NAMES: Final = tuple(section.section for section in _SECTIONS)
assert len(_BY_ENVIRONMENT) == len(_KNOWN), "two settings share a variable"


def _kind(one: Field[Any]) -> ValueKind:
    kind: ValueKind = one.metadata["kind"]
    return kind


def _read(key: str, kind: ValueKind, value: object, source: str) -> Any:
    try:
        return kind.read(value)
    except ValueError:
        where = f"{source}: " if source else ""
        shown = "***" if isinstance(kind, MAY_HOLD_SECRETS) else repr(value)
        raise Invalid(f"{where}{key}={shown} is not allowed: use {kind.allowed}") from None


def _from_file(path: Path | None, problems: list[str]) -> Iterator[tuple[str, object, str]]:
    """Yield the dotted key, value and source of every setting in the file."""
    if path is None:
        return
    source = f"{_FILE_SOURCE}{path}"
    for name, table in _parse(path).items():
        if name not in _SECTION_NAMES:
            problems.append(f"{source}: {_unknown_section(name)}")
        elif not isinstance(table, dict):
            problems.append(f"{source}: {name} is not a table: write [{name}] and its keys below it")
        else:
            for key, value in table.items():
                yield f"{name}.{key}", value, source


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"configuration file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"configuration file {path} is not valid TOML: {error}") from None


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> Iterator[tuple[str, object, str]]:
    """Yield the dotted key, value and source of every setting in the environment.

    Variables named after a section must be known settings; others, such as DANUBE_URL, are ignored. An empty variable
    counts as not set: some shells and container files cannot unset one.
    """
    ours = tuple(f"{_ENVIRONMENT_PREFIX}{name.upper()}_" for name in _SECTION_NAMES)
    for variable in sorted(name for name, value in environ.items() if value != ""):
        if variable in _BY_ENVIRONMENT:
            yield _BY_ENVIRONMENT[variable], environ[variable], f"environment {variable}"
        elif variable.startswith(ours) and variable not in _NO_SETTINGS:
            near = nearest(variable, _BY_ENVIRONMENT)
            hint = f"did you mean {near}?" if near else "`danube config show` lists them all"
            problems.append(f"environment: {variable} is not a known setting: {hint}")  # its value may be a secret


def _from_overrides(overrides: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    return ((key, value, "command line") for key, value in overrides.items() if value is not None)


def _unknown(key: str) -> str:
    section, _, name = key.partition(".")
    if section not in _SECTION_NAMES:
        return _unknown_section(section)
    here = [known.partition(".")[2] for known in _KNOWN if known.startswith(f"{section}.")]
    elsewhere = next((known for known in _KNOWN if known.endswith(f".{name}")), "")
    near = elsewhere or (f"{section}.{meant}" if (meant := nearest(name, here)) else "")
    hint = f"did you mean {near}?" if near else f"[{section}] has {', '.join(here)}"
    return f"{key} is not a known setting: {hint}"


def _unknown_section(name: str) -> str:
    near = nearest(name, _SECTION_NAMES)
    homes = [known for known in _KNOWN if known.endswith(f".{name}")]
    if homes:
        return f"{name} is not a known section: did you mean {homes[0]}?"
    hint = f"did you mean [{near}]?" if near else f"there are {', '.join(_SECTION_NAMES)}"
    return f"{name} is not a known section: {hint}"
