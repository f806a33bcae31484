"""COMPOSITION ROOT. Makes a running broker from settings and components; only here are the parts put together.

Parts are opened in the order in which they depend on each other: directory (lock, identity), metadata, log (recovery),
broker, listeners. They are closed in reverse order, so that no publish is answered that can no longer be stored.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import msgspec

from .broker import Broker, BrokerParts, BrokerSettings
from .broker.registry.ids import LEDGER_COUNTER
from .broker.registry.registry import Registry
from .broker.registry.tombstones import KnownLedgers
from .broker.tiering.object_storage import TieringSettings
from .broker.tracing import BatchTracer
from .core.access import AllowAll, Authorizer
from .gateway.native import NativeServer, NativeSettings
from .metadata.counters import last_id
from .metadata.opening import open_metadata
from .metadata.store import Compare, MetadataStore, Put
from .model.addresses import BrokerAddresses
from .model.errors import DanubeError, Refused
from .model.webhooks import Webhook
from .runtime.clock import Clock, SystemClock
from .runtime.disk import Disk, OsDisk
from .runtime.file_descriptors import (
    KEPT,
    ConnectionLimits,
    log_files,
    plan_grpc_connections,
    plan_http_connections,
    raise_descriptor_limit,
)
from .runtime.network import check_free
from .runtime.objects.opening import open_store
from .runtime.service_manager import notify
from .runtime.signals import on_hangup, on_stop_signals
from .runtime.tasks import Tasks, run_together
from .runtime.telemetry import get_logger
from .settings import Settings
from .storage.directory import DataDirectory
from .storage.metadata_seen import read_seen, refuse_older, write_seen
from .storage.wal import LogWriter, MetadataStamp, RecoveredLog, WalSettings
from .version import __version__

if TYPE_CHECKING:
    from .gateway.grpc import GrpcServer, GrpcSettings
    from .gateway.http import HttpServer, HttpSettings

log = get_logger(__name__)

DEFAULT_NODE: Final = "broker-1"
METADATA_PART: Final = "metadata"
LOG_PART: Final = "wal"
LOG_KEY: Final = "/log"
"""In the metadata store: the generation of the file that the log began at the last start. A log without it is older."""

IDENTITY_KEY: Final = "/identity"
"""The key of the broker's identity in the metadata store. It shows when metadata and data directory belong to
different brokers."""

REVISION_INTERVAL_S: Final = 10.0
"""How often the revision of the metadata is saved in the data directory and noted in the log, if it has changed."""

DISK_CHECK_INTERVAL_S: Final = 10.0
"""How often the free space on the disk of the metadata is checked."""

METADATA_FREE_BYTES_MIN: Final = 8 << 20
"""With less than this left on the disk of the metadata, the state of the broker says so: the journal of the metadata is
written anew now and then, beside the old one."""

SWITCH_SECONDS: Final = 0.00005
"""Python's thread switch interval, a hundredth of the default: how long the log's thread waits for a busy event loop.

The loop releases the interpreter's lock at every system call, and each time the wait begins anew. With 0.5 ms the log's
thread was starved while payloads were validated: the p99 of other topics was 18 ms, and is 12 ms now."""

UPLOAD_INTERVAL_S: Final = 1.0
"""How often the broker checks what is due for upload to object storage."""

DRAIN_SECONDS: Final = 10.0
"""How long a closing broker goes on answering requests that clients have sent."""

HTTP_DRAIN_SECONDS_MIN: Final = 1.0
"""How long HTTP requests get at least, when native clients needed all of that time."""


class Listener(NamedTuple):
    """How a listener is called, in the settings and on the command line."""

    name: str
    setting: str
    option: str


NATIVE: Final = Listener("native", "port", "--port")
GRPC: Final = Listener("gRPC", "grpc_port", "--grpc-port")
ADMIN: Final = Listener("gRPC admin", "admin_port", "--admin-port")
HTTP: Final = Listener("HTTP", "http_port", "--http-port")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Components:
    """What the server needs from outside. Tests pass their own."""

    clock: Clock
    disk: Disk
    authorizer: Authorizer

    @classmethod
    def real(cls) -> Self:
        return cls(SystemClock(), OsDisk(), AllowAll())


class Server:
    """A running broker with its listeners."""

    def __init__(self, settings: Settings, components: Components) -> None:
        self._settings = settings
        self._components = components
        self._parts = AsyncExitStack()
        self._native: NativeServer | None = None
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None
        self._saved: MetadataStamp | None = None
        self._saving: asyncio.Future[None] | None = None
        self._metadata_trouble = ""
        self.native_address = ("", 0)
        self.http_address = ("", 0)
        self.grpc_address = ("", 0)
        self.admin_address = ("", 0)
        """Port 0, here and above, if there is no such listener."""

    @classmethod
    async def start(cls, settings: Settings, components: Components | None = None) -> Self:
        """Open everything. If that fails or is cancelled, what was opened is closed again."""
        server = cls(settings, components or Components.real())
        try:
            await server._open()
        except BaseException:
            await server.close()
            raise
        return server

    async def close(self) -> None:
        """Stop accepting, answer what was sent, sync, unlock the directory. Cancelled: the directory is as after a
        crash."""
        native, self._native = self._native, None
        http, self._http = self._http, None
        grpc, self._grpc = self._grpc, None
        clock = self._components.clock
        deadline = clock.monotonic() + DRAIN_SECONDS
        if http is not None:
            http.drain()  # it goes on to say so on /readyz while the native clients get their answers
        if grpc is not None:
            grpc.drain()
        await run_together(one.close(DRAIN_SECONDS) for one in (native, grpc) if one is not None)
        if http is not None:
            await http.close(max(HTTP_DRAIN_SECONDS_MIN, deadline - clock.monotonic()))
        await self._parts.aclose()

    @property
    def url(self) -> str:
        host, port = self.native_address
        return f"danube://{_bracketed(host)}:{port}"

    @property
    def http_url(self) -> str:
        host, port = self.http_address
        return f"http://{_bracketed(host)}:{port}"

    @property
    def ready_line(self) -> str:
        """The line that `danube serve` prints once clients can connect; a listener that is off has port 0."""
        host, port = self.native_address
        host = _bracketed(host)
        grpc, admin, http = self.grpc_address[1], self.admin_address[1], self.http_address[1]
        return f"danube ready native={host}:{port} grpc={host}:{grpc} admin={host}:{admin} http={host}:{http}"

    async def _open(self) -> None:
        settings, clock, disk = self._settings, self._components.clock, self._components.disk
        listeners = self._listeners()
        for listener in listeners:
            await self._on_port(listener, check_free)  # before the data directory is touched
        node = settings.server.name or DEFAULT_NODE
        is_in_directory = isinstance(settings.metadata_place, Path)
        store = None if is_in_directory else await self._open_metadata()  # before the data directory is touched
        directory = DataDirectory.open(disk, settings.server.data_dir, cluster=None, node=node)
        self._parts.callback(directory.close)
        store = store or await self._open_metadata()
        await self._check_metadata(store, directory)
        registry = Registry(store, clock)
        await registry.load()
        writer = await self._open_log(directory, store, await registry.known_ledgers())
        await self._save_revision(store, directory, writer)
        self._parts.push_async_callback(self._save_revision, store, directory, writer)
        objects = await open_store(settings.store_url, settings.storage.options)
        self._parts.push_async_callback(objects.close)
        tasks = Tasks()
        self._parts.push_async_callback(tasks.close)
        broker_settings = _broker_settings(settings, directory.identity.node, directory.identity.cluster)
        parts = BrokerParts(
            store,
            registry,
            writer,
            self._components.authorizer,
            clock,
            tasks,
            self._advertised_addresses,
            objects,
            _tiering_settings(settings),
            lambda: self._metadata_trouble,
        )
        broker = Broker(parts, broker_settings)
        self._open_tracing(broker)
        self._parts.push_async_callback(broker.close)
        await broker.start()
        assert broker.tiers is not None
        tasks.spawn(broker.metrics.measure_loop_delay(), "event loop delay")
        tasks.spawn(broker.tiers.run(), "object storage")
        tasks.spawn(self._keep_saving_revision(store, directory, writer), "metadata revision remembering")
        if is_in_directory:
            await self._check_metadata_disk()
            tasks.spawn(self._keep_checking_metadata_disk(), "metadata disk checking")
        tasks.spawn(broker.lifetimes.run(settings.topics.lifetimes_interval_s), "lifetimes")
        host = await self._open_listeners(broker, tasks, listeners)
        log.info("broker.started", address=broker.address, data_dir=str(directory.path), node=directory.identity.node)
        if not _is_loopback(host):
            log.warning(
                "broker.unprotected",
                host=host,
                advice="anyone who reaches this address may do anything",
            )

    def _open_tracing(self, broker: Broker) -> None:
        tracing = self._settings.tracing
        if not tracing.endpoint:
            return
        from .runtime.spans import SpanExporter  # imports OpenTelemetry, which is an extra

        about = {"service.name": tracing.service, "service.instance.id": broker.node, "service.version": __version__}
        exporter = SpanExporter(tracing.endpoint, about)
        self._parts.push_async_callback(exporter.close)
        broker.metrics.tracer = BatchTracer(exporter, self._components.clock)

    def _listeners(self) -> list[Listener]:
        """Return the listeners that are on and can be opened."""
        settings, has_grpc = self._settings, has_grpcio()
        if not has_grpc and (settings.grpc.data or settings.grpc.admin):
            log.info("grpc.not_installed", advice="for the Danube gRPC API, pip install 'pydanube[grpc]'")
        chosen = {
            NATIVE: True,
            GRPC: settings.grpc.data and has_grpc,
            ADMIN: settings.grpc.admin and has_grpc,
            HTTP: settings.server.http,
        }
        return [listener for listener, is_on in chosen.items() if is_on]

    async def _open_listeners(self, broker: Broker, tasks: Tasks, listeners: list[Listener]) -> str:
        """Open the listeners, the native one last: who can connect there finds everything open. Return its host."""
        settings, clock = self._settings, self._components.clock
        grpc_places = _grpc_places(settings) if GRPC in listeners or ADMIN in listeners else 0
        places = _http_places(settings) if HTTP in listeners else ConnectionLimits(0, 0)
        reserved = grpc_places + places.connections + 3 * places.at_once
        self._native = NativeServer(broker, _native_settings(settings, reserved), clock, tasks)
        memory = self._native.publish_memory
        if HTTP in listeners:
            from .gateway.http import HttpServer  # imports a web framework: only where it is used

            self._http = HttpServer(broker, _http_settings(settings, places), clock, tasks, memory)
            self.http_address = await self._on_port(HTTP, self._http.start)
        if grpc_places:
            from .gateway.grpc import GrpcServer  # imports grpcio, which is an extra

            grpc_settings = _grpc_settings(settings, grpc_places)
            self._grpc = GrpcServer(broker, grpc_settings, clock, tasks, memory)
            if GRPC in listeners:
                self.grpc_address = await self._on_port(GRPC, self._grpc.open_data)
            if ADMIN in listeners:
                self.admin_address = await self._on_port(ADMIN, self._grpc.open_admin)
            await self._grpc.start()
        self.native_address = await self._on_port(NATIVE, self._native.start)
        return self.native_address[0]

    async def _on_port(self, listener: Listener, act: Callable[[str, int], Awaitable[T]]) -> T:
        """Call `act` with host and port of a listener. Raises Refused, with the way to another port, if it is taken."""
        host, port = self._settings.server.host, getattr(self._settings.server, listener.setting)
        try:
            return await act(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            key = f"server.{listener.setting}"
            source = self._settings.sources.get(key, "default")
            raise Refused(
                f"{_bracketed(host)}:{port} is taken, perhaps by another broker: it is {key} ({source}), for the "
                f"{listener.name} listener; choose another with {listener.option} (0 takes a free one)"
            ) from None

    def _advertised_addresses(self) -> BrokerAddresses:
        """Return the addresses that clients are told: those that are configured, or those of the open listeners.

        A listener without an address of its own in the settings has the host of the native one.
        """
        native, grpc = self._settings.server.advertised, self._settings.grpc.advertised
        return BrokerAddresses(
            native=_advertised(self.native_address, native, native),
            grpc=_advertised(self.grpc_address, grpc, native),
            admin=_advertised(self.admin_address, "", grpc or native),
            http=_advertised(self.http_address, self._settings.http.advertised, native),
        )

    async def _open_metadata(self) -> MetadataStore:
        store = await open_metadata(self._settings.metadata_place, self._components.clock)
        self._parts.push_async_callback(store.close)
        return store

    async def _check_metadata(self, store: MetadataStore, directory: DataDirectory) -> None:
        """Refuse metadata that does not belong to the data directory, or that is older than it."""
        place = self._settings.metadata_place
        mine = msgspec.json.encode(directory.identity)
        found = await store.get(IDENTITY_KEY)
        if found is not None and found.value != mine:
            raise Refused(
                f"{place} belongs to {found.value.decode(errors='replace')}, not to "
                f"{mine.decode()}: put back the metadata of this data directory"
            )
        if found is None:
            if directory.knows(METADATA_PART):
                raise Refused(
                    f"{place} is empty, but {directory.path} had metadata: put back a copy, or mount the right disk"
                )
            await store.transact([Compare.missing(IDENTITY_KEY)], [Put(IDENTITY_KEY, mine)])
        directory.add_part(METADATA_PART)
        await self._refuse_older_metadata(store, directory)

    async def _refuse_older_metadata(self, store: MetadataStore, directory: DataDirectory) -> None:
        """Refuse metadata that is older than the data directory: it would give out ids and offsets a second time."""
        seen = read_seen(self._components.disk, directory.path)
        if seen is not None:
            identity, revision = await store.identity(), await store.revision()
            refuse_older(identity, revision, dict([seen]), directory.path, self._settings.metadata_place)

    async def _save_revision(self, store: MetadataStore, directory: DataDirectory, writer: LogWriter) -> None:
        """Save the revision of the metadata in the data directory, so that a later start refuses an older copy.

        What fails is tried again the next time; the log names its metadata too. Cancelled: the file is written all the
        same.
        """
        assert writer.metadata is not None
        try:
            if self._saving is not None:  # by a call that was cancelled
                await asyncio.wait([self._saving])
            writer.note_revision(await store.revision())
            seen = writer.metadata
            if seen != self._saved:
                write = partial(write_seen, self._components.disk, directory.path, seen)
                self._saving = asyncio.get_running_loop().run_in_executor(None, write)
                await asyncio.shield(self._saving)
                self._saved = seen
        except (OSError, DanubeError) as error:
            log.warning("metadata.revision_not_written", error=str(error))

    async def _keep_saving_revision(self, store: MetadataStore, directory: DataDirectory, writer: LogWriter) -> None:
        while True:
            await self._components.clock.sleep(REVISION_INTERVAL_S)
            await self._save_revision(store, directory, writer)

    async def _keep_checking_metadata_disk(self) -> None:
        while True:
            await self._components.clock.sleep(DISK_CHECK_INTERVAL_S)
            await self._check_metadata_disk()

    async def _check_metadata_disk(self) -> None:
        """Note whether the disk of the metadata is full. A metadata store that is not written to fails only later."""
        where = self._settings.metadata_path.parent
        try:
            free = (await asyncio.to_thread(self._components.disk.usage, where)).free_bytes
        except OSError as error:
            trouble = f"the disk of the metadata cannot be looked at: {where}: {error.strerror or error}"
        else:
            full = free < METADATA_FREE_BYTES_MIN
            trouble = f"the disk of the metadata is full: {free} bytes are free at {where}; free some" if full else ""
        if trouble and not self._metadata_trouble:
            log.warning("metadata.disk_full", path=str(where), reason=trouble)
        self._metadata_trouble = trouble

    async def _open_log(self, directory: DataDirectory, store: MetadataStore, known: KnownLedgers) -> LogWriter:
        metadata_place, log_directory = self._settings.metadata_place, self._settings.log_directory
        identity, revision = await store.identity(), await store.revision()

        async def check(recovered: RecoveredLog) -> None:
            refuse_older(identity, revision, recovered.metadata, log_directory, metadata_place)
            begun = await store.get(LOG_KEY)
            if begun is not None and recovered.newest_generation < int(begun.value):
                raise Refused(
                    f"{log_directory} ends with file {recovered.newest_generation}, and {metadata_place} has seen file "
                    f"{int(begun.value)}: the log is an older copy; put back the newest one, or log and metadata of "
                    f"one moment"
                )
            newest = max(recovered.ledgers, default=0)
            if newest > await last_id(store, LEDGER_COUNTER):
                raise Refused(
                    f"the log has ledger {newest}, which {metadata_place} never gave out: the metadata is older than "
                    f"the log; put back the newest copy"
                )
            await known.check(store, recovered, metadata_place)

        writer = await LogWriter.open(
            self._components.disk,
            log_directory,
            directory.identity,
            _wal_settings(self._settings),
            self._components.clock,
            must_exist=directory.knows(LOG_PART),
            is_needed=known.needed.__contains__,
            check=check,
            metadata=MetadataStamp(identity.store_id, revision),
        )
        self._parts.push_async_callback(writer.close)
        directory.add_part(LOG_PART)
        await store.transact([], [Put(LOG_KEY, b"%d" % writer.newest_generation)])
        writer.forget(set(writer.recovered.ledgers) - known.needed)
        return writer


async def run(settings: Settings) -> None:
    """Serve until a signal of `runtime.signals` comes; a second SIGTERM or SIGINT ends the drain at once."""
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_stop_signals(loop, stop.set)
    on_hangup(loop, stop.set)
    server = await Server.start(settings)
    gc.collect()
    gc.freeze()  # what was imported and opened stays: the collector can skip it
    print(server.ready_line, flush=True)  # noqa: T201 - the contract: one readiness line on stdout
    notify("READY=1")
    await stop.wait()
    log.info("broker.stopping")
    notify("STOPPING=1")
    task = asyncio.current_task()
    assert task is not None
    on_stop_signals(loop, task.cancel)
    await server.close()
    log.info("broker.stopped")


def _wal_settings(settings: Settings) -> WalSettings:
    return WalSettings(
        file_bytes=settings.log.file_bytes,
        group_bytes_max=settings.log.group_bytes_max,
        lazy_sync_ms=settings.log.lazy_sync_ms,
        open_files_max=log_files(raise_descriptor_limit(settings.limits.connections_max + KEPT)),
    )


def has_grpcio() -> bool:
    """Return whether the packages of the extra `grpc` are installed."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("grpc", "google.protobuf"))
    except ModuleNotFoundError:  # there is not even a package `google`
        return False


def _grpc_places(settings: Settings) -> int:
    """Return how many connections both gRPC listeners may have together."""
    wanted, limits = settings.grpc.connections_max, settings.limits
    others = limits.connections_max + limits.http_connections_max
    return plan_grpc_connections(raise_descriptor_limit(others + wanted + KEPT), wanted, others)


def _grpc_settings(settings: Settings, places: int) -> GrpcSettings:
    from .gateway.grpc import GrpcSettings

    grpc, limits = settings.grpc, settings.limits
    return GrpcSettings(
        connections_max=places - places // 10 - 1,
        admin_connections_max=places // 10 + 1,
        calls_max=grpc.calls_max,
        calls_per_address_max=min(grpc.calls_per_address_max, grpc.calls_max),
        message_bytes_max=limits.message_bytes_max,
        receive_bytes_max=grpc.receive_bytes_max,
        handshake_timeout_ms=limits.handshake_timeout_ms,
        keep_alive_ms=limits.keep_alive_ms,
    )


def _http_places(settings: Settings) -> ConnectionLimits:
    wanted, native = settings.limits.http_connections_max, settings.limits.connections_max
    return plan_http_connections(raise_descriptor_limit(native + wanted + KEPT), wanted, native)


def _http_settings(settings: Settings, places: ConnectionLimits) -> HttpSettings:
    from .gateway.http import HttpSettings, MetricsSettings

    limits = settings.limits
    return HttpSettings(
        connections_max=places.connections,
        connections_per_address_max=limits.connections_per_address_max,
        accepted_at_once=places.at_once,
        header_timeout_ms=limits.handshake_timeout_ms,
        body_bytes_max=limits.http_body_bytes_max,
        bodies_bytes_max=max(limits.http_body_bytes_max, limits.pending_publish_bytes_max // 2),
        allowed_hosts=settings.http.allowed_hosts,
        consumers_max=settings.http.consumers_max,
        session_timeout_ms_max=settings.http.session_timeout_ms_max,
        poll_wait_ms_max=settings.http.poll_wait_ms_max,
        heartbeat_ms=settings.http.heartbeat_ms,
        cors_origins=settings.http.cors_origins,
        webhooks=tuple(_with_secret(one) for one in settings.http.webhooks),
        metrics=MetricsSettings(settings.metrics.topics, settings.metrics.series_max),
    )


def _with_secret(webhook: Webhook) -> Webhook:
    """Return the webhook with its secret, which may be in a file. Raises Refused if that cannot be read."""
    if not webhook.secret_file:
        return webhook
    try:
        secret = Path(webhook.secret_file).read_text(encoding="utf-8").strip()
        return replace(webhook, secret=secret, secret_file="")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"the secret of webhook {webhook.name!r} cannot be read: {webhook.secret_file}: {error}"
        ) from None


def _native_settings(settings: Settings, descriptors_reserved: int) -> NativeSettings:
    limits = settings.limits
    return NativeSettings(
        connections_max=limits.connections_max,
        connections_per_address_max=limits.connections_per_address_max,
        descriptors_reserved=descriptors_reserved,
        handshake_timeout_ms=limits.handshake_timeout_ms,
        keep_alive_ms=limits.keep_alive_ms,
        publish_window_bytes=limits.publish_window_bytes,
        # Half of what the broker accepts: clients are slowed down by flow control before they are refused.
        publish_memory_bytes=limits.pending_publish_bytes_max // 2,
        fetch_bytes_max=limits.fetch_bytes_max,
    )


def _broker_settings(settings: Settings, node: str, cluster: str) -> BrokerSettings:
    return BrokerSettings(
        node=node,
        cluster=cluster,
        tail_bytes=settings.cache.tail_bytes,
        memory_topic_bytes=settings.cache.memory_topic_bytes,
        pending_publish_bytes_max=settings.limits.pending_publish_bytes_max,
        message_bytes_max=settings.limits.message_bytes_max,
        fetch_bytes_max=settings.limits.fetch_bytes_max,
        auto_create=settings.topics.auto_create,
        ack_level=settings.topics.ack_level,
        offset_block=settings.topics.offset_block,
        remembered_max=settings.producers.remembered_max,
        remembered_us=settings.producers.remembered_s * 1_000_000,
    )


def _tiering_settings(settings: Settings) -> TieringSettings:
    storage = settings.storage
    return TieringSettings(
        segment_bytes=storage.segment_bytes,
        segment_age_s=storage.segment_age_s,
        shared_below_bytes=storage.shared_below_bytes,
        upload_interval_s=UPLOAD_INTERVAL_S,
        upload_bytes_per_s=storage.upload_bytes_per_s,
        shutdown_upload_s=storage.shutdown_upload_s,
        log_keep_bytes=storage.log_keep_bytes,
        log_bytes_max=storage.log_bytes_max,
        cache_bytes=storage.cache_bytes,
        grace_s=storage.grace_s,
        stage_keep_s=storage.stage_keep_s,
        staged_query_keep_s=storage.staged_query_keep_s,
    )


def _advertised(listener: tuple[str, int], configured: str, another: str) -> str:
    """Return the host:port of a listener that clients are told; empty if there is no such listener.

    `another` is an address whose host is used if no address of this listener is configured.
    """
    host, port = listener
    if not port or configured:
        return configured if port else ""
    return f"{another.rpartition(':')[0] or _bracketed(_reachable(host))}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _reachable(host: str) -> str:
    """Return an address that clients can connect to: for a broker that listens on all addresses, the loopback one."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
