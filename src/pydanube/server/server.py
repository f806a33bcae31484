"""COMPOSITION ROOT. Makes a running broker from settings and components; only here are the parts put together.

Parts are opened in the order in which they depend on each other: directory (lock, identity), metadata, log (recovery),
broker, listeners. They are closed in reverse order, so that no publish is answered that can no longer be stored.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib.util
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import msgspec

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.cluster_membership import ClusterMembership
from pydanube.broker.cluster.joining import METADATA_PART, Joining, join_cluster, refuse_copy
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.node_records import FOUNDER_LOG_KEY, IDENTITY_KEY, log_key, node_key
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts, sole_cluster
from pydanube.broker.observe.tracing import BatchTracer
from pydanube.broker.registry.ids import LEDGER_COUNTER
from pydanube.broker.registry.registry import Registry
from pydanube.broker.registry.tombstones import KnownLedgers
from pydanube.broker.security.audit import AuditParts
from pydanube.broker.security.audit_file import AuditFile, FileSink
from pydanube.broker.security.first_key import create_first_key
from pydanube.broker.security.security import SecurityParts
from pydanube.broker.security.security_store import SecurityStore
from pydanube.codec.state import FORMAT as STATE_FORMAT
from pydanube.codec.wal import FORMAT as LOG_FORMAT
from pydanube.codec.wal import NodeIdentity
from pydanube.core.access import AllowAll, Authorizer
from pydanube.core.access_rules import AccessRules
from pydanube.gateway.door import Door
from pydanube.gateway.native import NativeServer
from pydanube.gateway.native.peers import NativePeers, is_living
from pydanube.metadata.etcd.place import older_copy
from pydanube.metadata.following import Follower
from pydanube.metadata.id_counters import last_id
from pydanube.metadata.levels import put_level, refuse_unknown_level
from pydanube.metadata.opening import open_metadata
from pydanube.metadata.store import NO_GENERATION, Compare, Generation, MetadataStore, Put
from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses, bracketed, host_port, is_loopback
from pydanube.model.cluster import PROOF_BYTES, BrokerSession
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.levels import THIS_RELEASE, Levels
from pydanube.model.settings.words import OFF, OPTIONAL
from pydanube.model.webhooks import Webhook
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import Disk, OsDisk
from pydanube.runtime.file_descriptors import (
    GRPC_DESCRIPTORS,
    KEPT,
    ConnectionLimits,
    log_files,
    plan_grpc_connections,
    plan_http_connections,
    raise_descriptor_limit,
)
from pydanube.runtime.network import check_free
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.opening import open_store, peek_store
from pydanube.runtime.randomness import secret_text
from pydanube.runtime.service_manager import notify
from pydanube.runtime.signals import has_terminal, on_hangup, on_stop_signals
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import PeerContexts, ServerCertificates, ServerTls
from pydanube.server.securing import check_settings, cluster_token, open_authentication
from pydanube.settings import Settings
from pydanube.storage.directory import FORMAT as DIRECTORY_FORMAT
from pydanube.storage.directory import DataDirectory
from pydanube.storage.metadata_seen import lacks_mark, read_generation, read_mark, read_seen, refuse_older, write_seen
from pydanube.storage.segments.store_proof import StoreProof, refuse_missing
from pydanube.storage.wal import LogWriter, MetadataStamp, RecoveredLog, check_manifest
from pydanube.version import __version__

if TYPE_CHECKING:
    from pydanube.gateway.grpc import GrpcServer
    from pydanube.gateway.http import HttpServer

log = get_logger(__name__)

DEFAULT_NODE: Final = "broker-1"
LOG_PART: Final = "wal"

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

DRAIN_SECONDS: Final = 10.0
"""How long a closing broker goes on answering requests that clients have sent."""

LAST_REVISION_S: Final = 3.0
"""How long a closing broker waits for the revision of the metadata."""

HTTP_DRAIN_SECONDS_MIN: Final = 1.0
"""How long HTTP requests get at least, when native clients needed all of that time."""


FORMATS: Final = (f"data-directory/{DIRECTORY_FORMAT}", f"log/{LOG_FORMAT}", f"state/{STATE_FORMAT}")
"""What a broker of a cluster tells the others about the stored formats that it reads and writes."""


class Listener(NamedTuple):
    """How a listener is called, in the settings and on the command line."""

    name: str
    setting: str
    option: str


NATIVE: Final = Listener("native", "port", "--port")
GRPC: Final = Listener("gRPC", "grpc_port", "--grpc-port")
ADMIN: Final = Listener("gRPC admin", "admin_port", "--admin-port")
HTTP: Final = Listener("HTTP", "http_port", "--http-port")


class _Taken(Enum):
    """The answer for a port that another process has."""

    TAKEN = "taken"


TAKEN: Final = _Taken.TAKEN

T = TypeVar("T")


class Opened(NamedTuple):
    """What is opened first: the metadata, the data directory and the object store."""

    store: MetadataStore
    directory: DataDirectory
    objects: ObjectStore | None
    """None: it is opened after the log."""
    founder: NodeIdentity | None
    """The founder of the cluster; None if this broker is no part of one."""

    @property
    def is_founder(self) -> bool:
        """Whether this broker founded its cluster, or is no part of one."""
        return self.founder is None or self.founder.incarnation == self.directory.identity.incarnation

    @property
    def log_key(self) -> str:
        """The metadata key of the newest file of this broker's log."""
        mine = self.directory.identity
        return FOUNDER_LOG_KEY if self.founder is None else own_log_key(mine.incarnation, self.founder)

    def is_own_log(self, log: str) -> bool:
        """See Membership.is_own_log; for the start, when there is no session yet."""
        return self.founder is None or log == self.directory.identity.incarnation or (not log and self.is_founder)


@dataclass(frozen=True, slots=True)
class Components:
    """What the server needs from outside. Tests pass their own."""

    clock: Clock
    disk: Disk
    authorizer: Authorizer
    levels: Levels = THIS_RELEASE
    """The feature levels of the metadata that the broker knows."""

    @classmethod
    def real(cls) -> Self:
        return cls(SystemClock(), OsDisk(), AllowAll())


class Server:
    """A running broker with its listeners."""

    def __init__(self, settings: Settings, components: Components, on_outgrown: Callable[[], None]) -> None:
        self._settings = settings
        self._components = components
        self._on_outgrown = on_outgrown
        self._registry: Registry | None = None
        self._parts = AsyncExitStack()
        self._native: NativeServer | None = None
        self._member: Broker | None = None
        """The broker, once it is a member of a cluster."""
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None
        self._saved: tuple[MetadataStamp, int, Generation] | None = None
        """The revision, the mark and the generation of the metadata that are in the data directory."""
        self._mark = 0
        """The revision at which the key of the own log was written last."""
        self._changes_marked = 0
        """How many changes the metadata had then, without those that are marks."""
        self._saving: asyncio.Future[None] | None = None
        self._metadata_trouble = ""
        self._certificates: dict[ServerTls, ServerCertificates] = {}
        self._listener_tls: dict[Listener, ServerCertificates] = {}
        """The certificates of the listeners that have TLS."""
        self._tasks = Tasks()
        self.native_address = ("", 0)
        self.http_address = ("", 0)
        self.grpc_address = ("", 0)
        self.admin_address = ("", 0)
        """Port 0, here and above, if there is no such listener."""

    @classmethod
    async def start(
        cls,
        settings: Settings,
        components: Components | None = None,
        on_outgrown: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open everything. If that fails or is cancelled, what was opened is closed again.

        `on_outgrown` is called when the metadata gets a feature level that this broker does not know. The broker has
        given up its session then and takes no other: close it.
        """
        server = cls(settings, components or Components.real(), on_outgrown)
        try:
            await server._open()
        except BaseException:
            await server.close()
            raise
        return server

    async def close(self) -> None:
        """Give partitions to the other brokers of the cluster, stop accepting, answer what was sent, sync, unlock the
        directory. Cancelled: the directory is as after a crash."""
        member, self._member = self._member, None
        if member is not None:
            await member.leave(self._settings.cluster.drain_s)
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

    def check_level(self) -> None:
        """Raise Refused if the metadata has a feature level that this broker does not know."""
        if self._registry is not None:
            self._registry.level.check()

    @property
    def url(self) -> str:
        host, port = self.native_address
        return f"{'danubes' if NATIVE in self._listener_tls else 'danube'}://{host_port(host, port)}"

    @property
    def data_dir(self) -> Path:
        return self._settings.server.data_dir

    @property
    def http_url(self) -> str:
        host, port = self.http_address
        return f"{'https' if HTTP in self._listener_tls else 'http'}://{host_port(host, port)}"

    @property
    def has_tls(self) -> bool:
        """Whether some listener has a certificate."""
        return bool(self._certificates)

    def reload_certificates(self) -> None:
        """Read those certificates again that have changed on disk."""
        for one in self._certificates.values():
            self._tasks.spawn(one.reload(), "certificates reloading")

    @property
    def ready_line(self) -> str:
        """The line that `danube serve` prints once clients can connect; a listener that is off has port 0."""
        host, port = self.native_address
        host = bracketed(host)
        grpc, admin, http = self.grpc_address[1], self.admin_address[1], self.http_address[1]
        return f"danube ready native={host}:{port} grpc={host}:{grpc} admin={host}:{admin} http={host}:{http}"

    async def _open(self) -> None:
        settings, clock = self._settings, self._components.clock
        check_settings(settings)
        listeners = self._listeners()
        for listener in tuple(listeners):  # before the data directory is touched
            if await self._unless_taken(listener, check_free) is TAKEN:
                listeners.remove(listener)
        self._open_certificates(listeners)
        node = settings.server.name or DEFAULT_NODE
        is_in_directory = isinstance(settings.metadata_place, Path)
        opened = await (self._open_alone(node) if is_in_directory else self._open_member(node))
        store, directory, objects, founder = opened
        registry = self._registry = Registry(store, clock, self._components.levels)
        follower = registry.follower
        await registry.load()
        writer = await self._open_log(opened, await registry.known_ledgers(opened.is_own_log))
        await self._save_revision(opened, writer)
        self._parts.push_async_callback(self._save_last_revision, opened, writer)
        objects = objects or await self._open_objects()
        tasks = self._tasks
        self._parts.push_async_callback(tasks.close)
        if founder is None:
            cluster = sole_cluster(node, self._advertised_addresses, inside=self._inside_addresses)
        else:
            membership = self._membership(store, follower, tasks, directory.identity, founder)
            registry.level.on_outgrown = partial(self._outgrown, membership)
            cluster = self._cluster(membership, follower, tasks)
        security = await self._security(store)
        parts = BrokerParts(
            store,
            registry,
            writer,
            self._components.authorizer if security is None else security.rules,
            clock,
            tasks,
            self._advertised_addresses,
            objects,
            lambda: self._metadata_trouble,
            cluster,
            security,
            self._audit(),
        )
        broker = Broker(parts, settings)
        self._open_tracing(broker)
        self._parts.push_async_callback(broker.close)
        await broker.start()
        if security is not None:
            await create_first_key(security.store, clock, self._components.disk, directory.path)
        if founder is not None:
            tasks.spawn(self._give_up_older_metadata(opened, membership, writer), "older metadata")
        self._run_tasks(broker, tasks)
        tasks.spawn(self._keep_saving_revision(opened, writer), "metadata revision remembering")
        if is_in_directory:
            await self._check_metadata_disk()
            tasks.spawn(self._keep_checking_metadata_disk(), "metadata disk checking")
        host = await self._open_listeners(broker, tasks, listeners)
        if founder is not None:
            await membership.join()  # its addresses are known now; what needs a session is Unavailable until here
            broker.joined()
            self._member = broker
        log.info(
            "broker.started",
            address=broker.address,
            data_dir=str(directory.path),
            node=directory.identity.node,
            authentication=security is not None,
            tls=", ".join(one.name for one in self._listener_tls) or "none",
        )
        if security is None and not is_loopback(host):
            log.warning(
                "broker.unprotected",
                host=host,
                advice="anyone who reaches this address may do anything",
            )

    def _outgrown(self, membership: ClusterMembership) -> None:
        """Own nothing any more, and have the process stop: what others write now may be read wrongly here."""
        membership.give_up(membership.session.incarnation)
        self._on_outgrown()

    async def _security(self, store: MetadataStore) -> SecurityParts | None:
        """Return the rules of access and who checks credentials; None if there is no authentication."""
        auth = self._settings.auth
        if not auth.enabled:
            return None
        rules = AccessRules(auth.super_users)
        access = SecurityStore(store, self._components.clock, rules)
        authenticator = await open_authentication(self._settings, access, self._components.clock)
        return SecurityParts(rules, access, authenticator)

    def _audit(self) -> AuditParts | None:
        """Return where audit events go; None if none are recorded. Raises Refused if their file cannot be opened."""
        audit, components = self._settings.audit, self._components
        if not self._settings.has_audit:
            return None
        if audit.to == "topic":
            return AuditParts(audit.topic, audit.sessions)
        path, sizes = self._settings.audit_path, (audit.file_bytes_max, audit.files_max)
        file = AuditFile.open(components.disk, path, *sizes, components.clock)
        return AuditParts(FileSink(file), audit.sessions)

    def _run_tasks(self, broker: Broker, tasks: Tasks) -> None:
        """Start what a broker does at intervals, until `tasks` is closed."""
        tasks.spawn(broker.metrics.measure_loop_delay(), "event loop delay")
        for name, work in broker.background_work(self._settings.topics.lifetimes_interval_s):
            tasks.spawn(work, name)
        tasks.spawn(broker.security.run(), "credentials expiring")
        for one in self._certificates.values():
            tasks.spawn(one.run(self._settings.tls.reload_interval_s), "certificates")

    async def _open_alone(self, node: str) -> Opened:
        """Open the data directory of a broker that is no part of a cluster, and its metadata."""
        directory = DataDirectory.open(self._components.disk, self._settings.server.data_dir, cluster=None, node=node)
        self._parts.callback(directory.close)
        store = await self._open_metadata()
        await refuse_unknown_level(store, self._components.levels)
        await self._check_metadata(store, directory)
        return Opened(store, directory, None, None)

    async def _open_member(self, node: str) -> Opened:
        """Open the metadata, the object store and the data directory of a broker of a cluster. What does not belong
        together is refused before anything is written."""
        settings, disk = self._settings, self._components.disk
        _refuse_own_store(settings)
        store = await self._open_metadata(create=False)
        place, path = settings.metadata_place, settings.server.data_dir
        check, levels = partial(self._check_member, store), self._components.levels
        joining = await join_cluster(store, place, disk, path, node, check, levels)
        objects = await self._open_objects()
        await StoreProof(objects, store, node).prove()
        directory = joining.open_directory(disk, path)
        self._parts.callback(directory.close)
        directory.add_part(METADATA_PART)
        opened = Opened(store, directory, objects, joining.founder)
        await self._refuse_older_metadata(store, path, opened.log_key, joining.name)
        return opened

    async def _check_member(self, store: MetadataStore, joining: Joining) -> None:
        """Raise Refused if the object store, the log or the metadata of a broker does not belong to its cluster. Writes
        nothing, and creates no directory."""
        settings, disk = self._settings, self._components.disk
        objects = await peek_store(settings.store_url, settings.storage.options)
        if objects is None:
            await refuse_missing(store, joining.name, settings.store_url)
        else:
            try:
                proof = StoreProof(objects, store, joining.name)
                await proof.refuse_foreign(joining.founder.cluster)
                await proof.check()
            finally:
                await objects.close()
        _, parts = DataDirectory.peek(disk, settings.server.data_dir) or (None, frozenset())
        check_manifest(disk, settings.log_directory, joining.identity, must_exist=LOG_PART in parts)
        own_key = own_log_key(joining.log, joining.founder)
        await self._refuse_older_metadata(store, settings.server.data_dir, own_key, joining.name)
        token, tls = self._peer_credentials()
        await refuse_copy(store, joining, lambda session: is_living(session, self._components.clock, token, tls))

    async def _open_objects(self) -> ObjectStore:
        objects = await open_store(self._settings.store_url, self._settings.storage.options)
        self._parts.push_async_callback(objects.close)
        return objects

    def _cluster(self, membership: ClusterMembership, follower: Follower, tasks: Tasks) -> ClusterParts:
        token, tls = self._peer_credentials()
        peers = NativePeers(membership, self._components.clock, tasks, token, tls)
        self._parts.callback(peers.close)
        return ClusterParts(membership, ClusterOwners(membership, follower), peers, Loads(follower))

    def _peer_credentials(self) -> tuple[str, Callable[[], ssl.SSLContext] | None]:
        """Return the token that this broker shows to the others, and what makes the TLS contexts of connections to
        them; None: they are not encrypted."""
        token = cluster_token(self._settings.auth) if self._settings.auth.enabled else ""
        own = self._listener_tls.get(NATIVE)
        return token, None if own is None else PeerContexts(own, self._settings.tls.peer_ca_file).newest

    def _membership(
        self, store: MetadataStore, follower: Follower, tasks: Tasks, identity: NodeIdentity, founder: NodeIdentity
    ) -> ClusterMembership:
        """Return the membership of a broker of a cluster; it joins when the listeners are open."""
        settings = self._settings

        proof = secret_text(PROOF_BYTES)

        def describe() -> BrokerSession:
            return BrokerSession(
                identity.node,
                0,
                self._advertised_addresses(),
                inside=self._inside_addresses(),
                log=identity.incarnation,
                zone=settings.cluster.zone,
                version=__version__,
                formats=FORMATS,
                level=self._components.levels.newest,
                proof=proof,
            )

        membership = ClusterMembership(
            store, follower, self._components.clock, tasks, describe, founder.incarnation, settings.cluster.session_s
        )
        self._parts.push_async_callback(membership.leave)  # after the broker has closed its partitions
        return membership

    def _open_tracing(self, broker: Broker) -> None:
        tracing = self._settings.tracing
        if not tracing.endpoint:
            return
        from pydanube.runtime.spans import SpanExporter

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
        reserved = GRPC_DESCRIPTORS * grpc_places + places.connections + 3 * places.at_once
        tls = self._listener_tls
        door = Door(broker, clock, settings.limits.publish_memory_bytes)
        self._native = NativeServer(broker, settings.limits, clock, tasks, tls.get(NATIVE), reserved, door)
        if HTTP in listeners:
            from pydanube.gateway.http import HttpServer

            webhooks = tuple(_with_secret(one) for one in settings.http.webhooks)
            with_secrets = replace(settings, http=replace(settings.http, webhooks=webhooks))
            self._http = HttpServer(broker, with_secrets, clock, tasks, tls.get(HTTP), places, door)
            self.http_address = await self._on_port(HTTP, self._http.start)
        if grpc_places:
            from pydanube.gateway.grpc import GrpcServer

            certificates = tls.get(GRPC), tls.get(ADMIN)
            self._grpc = GrpcServer(broker, settings, clock, tasks, certificates, grpc_places, door)
            if GRPC in listeners:
                opened = await self._unless_taken(GRPC, self._grpc.open_data)
                self.grpc_address = self.grpc_address if opened is TAKEN else opened
            if ADMIN in listeners:
                opened = await self._unless_taken(ADMIN, self._grpc.open_admin)
                self.admin_address = self.admin_address if opened is TAKEN else opened
            await self._grpc.start()
        self.native_address = await self._on_port(NATIVE, self._native.start)
        return self.native_address[0]

    def _open_certificates(self, listeners: list[Listener]) -> None:
        """Read the certificates of the listeners. Raises Refused, with the remedy."""
        settings = self._settings
        sections = {
            NATIVE: settings.tls_native,
            GRPC: settings.tls_grpc,
            ADMIN: settings.tls_admin,
            HTTP: settings.tls_http,
        }
        for listener in listeners:
            files = settings.listener_tls(sections[listener])
            if files is None:
                continue
            if listener in (GRPC, ADMIN) and files.client_certificates == OPTIONAL:
                files = _without_optional(files, listener, sections[listener].client_certificates == OPTIONAL)
            if files not in self._certificates:
                self._certificates[files] = ServerCertificates(files, self._components.clock)
            self._listener_tls[listener] = self._certificates[files]

    async def _unless_taken(self, listener: Listener, act: Callable[[str, int], Awaitable[T]]) -> T | _Taken:
        """Do the same as `_on_port`, but return TAKEN if a port of gRPC is in use that the settings did not choose: the
        broker then starts without gRPC."""
        try:
            return await self._on_port(listener, act)
        except Refused as error:
            own = {"grpc.data", "grpc.advertised"} if listener is GRPC else {"grpc.admin"}
            if listener not in (GRPC, ADMIN) or {f"server.{listener.setting}", *own} & set(self._settings.sources):
                raise
            log.warning("grpc.port_taken", listener=listener.name, reason=error.message)
            return TAKEN

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
                f"{host_port(host, port)} is taken, perhaps by another broker: it is {key} ({source}), for the "
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

    def _inside_addresses(self) -> BrokerAddresses:
        """Return the addresses that other brokers, and clients in the networks of server.inside, are told; none if they
        are the same as for all."""
        inside = self._settings.server.advertised_inside
        if not inside:
            return NO_ADDRESSES
        return BrokerAddresses(
            native=inside,
            grpc=_advertised(self.grpc_address, "", inside),
            admin=_advertised(self.admin_address, "", inside),
            http=_advertised(self.http_address, "", inside),
        )

    async def _open_metadata(self, *, create: bool = True) -> MetadataStore:
        store = await open_metadata(self._settings.metadata_place, self._components.clock, create=create)
        self._parts.push_async_callback(store.close)
        return store

    async def _check_metadata(self, store: MetadataStore, directory: DataDirectory) -> None:
        """Refuse metadata that does not belong to the data directory, or that is older than it."""
        place = self._settings.metadata_place
        mine = msgspec.json.encode(directory.identity)
        found = await store.get(IDENTITY_KEY)
        if found is not None and found.value != mine:
            raise Refused(
                f"{place} is not the metadata of {directory.path}: it says {found.value.decode(errors='replace')}, and "
                f"the directory {mine.decode()}; start the broker (node) that the metadata names, with its data "
                f"directory, or put back the metadata of this one"
            )
        if found is None:
            if directory.knows(METADATA_PART):
                raise Refused(
                    f"{place} is empty, but {directory.path} had metadata: put back a copy, or mount the right disk"
                )
            writes = [Put(IDENTITY_KEY, mine), put_level(self._components.levels.newest)]
            await store.transact([Compare.missing(IDENTITY_KEY)], writes)
        directory.add_part(METADATA_PART)
        await self._refuse_older_metadata(store, directory.path, FOUNDER_LOG_KEY)

    async def _refuse_older_metadata(self, store: MetadataStore, path: Path, own_key: str, name: str = "") -> None:
        """Refuse metadata that is older than the data directory: it would give out ids and offsets a second time.
        `own_key`: that of the broker's log; `name`: that of a broker of a cluster, which may have been removed."""
        disk, place = self._components.disk, self._settings.metadata_place
        seen = read_seen(disk, path)
        if seen is None:
            return
        identity, revision = await store.identity(), await store.revision()
        refuse_older(identity, revision, dict([seen]), path, place)
        former = read_generation(disk, path)
        is_restored = not identity.generation.may_continue(former)
        if lacks := lacks_mark(await store.get(own_key), read_mark(disk, path, identity.store_id)):
            how = ", and it was made anew" if is_restored else ""
            if name and await store.get(node_key(name)) is None:
                raise Refused(
                    f"{place} does not know broker {name!r}, and {path} has its log: if it was removed from its "
                    f"cluster (`danube brokers remove`), start it with an empty directory; if not, the metadata is "
                    f"older than the directory{how}: put back the newest copy"
                )
            raise Refused(
                f"{place} is older than {path}: {lacks}{how}; put back the newest copy of the metadata, or without one "
                f"restore from the object store with `danube storage restore`"
            )
        if is_restored:  # and has all that this broker has written: it was made of the last moment
            log.warning("etcd.made_anew", etcd=str(place), former=former, now=identity.generation)

    async def _save_revision(self, opened: Opened, writer: LogWriter) -> None:
        """Save the revision of the metadata in the data directory, so that a later start refuses an older copy.

        What fails is tried again the next time; the log names its metadata too. Cancelled: the file is written all the
        same.
        """
        assert writer.metadata is not None
        try:
            if self._saving is not None:  # by a call that was cancelled
                await asyncio.wait([self._saving])
            store, generation = opened.store, self._saved[2] if self._saved is not None else NO_GENERATION
            with suppress(DanubeError):  # what was seen before is saved all the same
                if opened.founder is not None:
                    await self._check_mark(opened)
                await store.revision()
                generation = (await store.identity()).generation
            writer.note_revision(store.revision_seen)
            seen = writer.metadata, self._mark, generation
            if seen != self._saved:
                write = partial(write_seen, self._components.disk, opened.directory.path, *seen)
                self._saving = asyncio.get_running_loop().run_in_executor(None, write)
                await asyncio.shield(self._saving)
                self._saved = seen
        except (OSError, DanubeError) as error:
            log.warning("metadata.revision_not_written", error=str(error))

    async def _save_last_revision(self, opened: Opened, writer: LogWriter) -> None:
        """Save the revision when the broker stops, unless the metadata does not answer: an older one is saved."""
        try:
            async with asyncio.timeout(LAST_REVISION_S):
                await self._save_revision(opened, writer)
        except TimeoutError:
            log.warning("metadata.revision_not_written", error=f"no answer within {LAST_REVISION_S} s")

    async def _keep_saving_revision(self, opened: Opened, writer: LogWriter) -> None:
        while True:
            await self._components.clock.sleep(REVISION_INTERVAL_S)
            await self._save_revision(opened, writer)

    async def _check_mark(self, opened: Opened) -> None:
        """Do nothing any more with an etcd that lacks the last mark: it was put back to an older copy. Its revision may
        have risen past the one that was seen, so that it does not show that. With an etcd that has changed, write the
        mark again: a copy that has it has everything that was seen before."""
        own = await opened.store.get(opened.log_key)
        if lacks := lacks_mark(own, self._mark):
            opened.store.refuse(older_copy(self._settings.metadata_place, lacks))
            return
        marks = await opened.store.list(FOUNDER_LOG_KEY)
        changes = await opened.store.revision() - sum(one.version for one in marks)
        if own is not None and changes != self._changes_marked:
            await self._write_mark(opened, own.value)
            self._changes_marked = changes  # marks do not count, so that brokers do not answer each other's for ever

    async def _write_mark(self, opened: Opened, value: bytes) -> None:
        """Write the key of the own log, and note at which revision that was."""
        self._mark = (await opened.store.transact([], [Put(opened.log_key, value)])).revision

    async def _give_up_older_metadata(self, opened: Opened, membership: ClusterMembership, writer: LogWriter) -> None:
        """When the etcd was put back to an older copy: give the session up, so that nothing is answered or acked any
        more, and save what was seen, so that a start on the older copy is refused.

        The slices of `stored` topics end too: the older copy may not name them, so what was acked in them would not
        be found.
        """
        await opened.store.refused()
        membership.give_up(membership.session.incarnation)
        await self._save_revision(opened, writer)

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

    async def _open_log(self, opened: Opened, known: KnownLedgers) -> LogWriter:
        store, directory = opened.store, opened.directory
        metadata_place, log_directory = self._settings.metadata_place, self._settings.log_directory
        identity, revision = await store.identity(), await store.revision()

        async def check(recovered: RecoveredLog) -> None:
            refuse_older(identity, revision, recovered.metadata, log_directory, metadata_place)
            begun = await store.get(opened.log_key)
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

        open_files_max = log_files(raise_descriptor_limit(self._settings.limits.connections_max + KEPT))
        writer = await LogWriter.open(
            self._components.disk,
            log_directory,
            directory.identity,
            replace(self._settings.log, open_files_max=open_files_max),
            self._components.clock,
            must_exist=directory.knows(LOG_PART),
            is_needed=known.needed.__contains__,
            check=check,
            metadata=MetadataStamp(identity.store_id, revision),
        )
        self._parts.push_async_callback(writer.close)
        directory.add_part(LOG_PART)
        await self._write_mark(opened, b"%d" % writer.newest_generation)
        writer.forget(set(writer.recovered.ledgers) - known.needed)
        return writer


def _without_optional(files: ServerTls, listener: Listener, is_its_own: bool) -> ServerTls:
    """Return the files of a gRPC listener without client certificates: gRPC cannot ask for them and do without. Raises
    Refused if just this listener is to have them."""
    why = "gRPC knows client certificates that are off or required, not optional ones"
    if is_its_own:
        raise Refused(f"the {listener.name} listener cannot have optional client certificates: {why}; choose one")
    log.warning("tls.no_optional_client_certificates", listener=listener.name, reason=why)
    return replace(files, client_certificates=OFF)


def own_log_key(log: str, founder: NodeIdentity) -> str:
    """Return the metadata key of the newest file of a log of the cluster that `founder` began."""
    return FOUNDER_LOG_KEY if log == founder.incarnation else log_key(log)


def _refuse_own_store(settings: Settings) -> None:
    """Raise Refused unless the object store of a broker of a cluster may be one that other brokers reach."""
    if not settings.storage.url:
        raise Refused(
            f"the brokers on {settings.metadata_place} share one object store, and none is given: add --storage-url "
            f"(storage.url), the same for all of them"
        )
    if settings.storage.url.startswith("memory:"):
        raise Refused(
            f"{settings.storage.url} is seen by this broker alone: give all brokers on {settings.metadata_place} a "
            f"--storage-url that all of them reach"
        )


async def run(
    settings: Settings, beside: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
) -> None:
    """Serve until a signal of `runtime.signals` comes; a second SIGTERM or SIGINT ends the drain at once. `beside` is
    given the address of the HTTP listener, and what it returns is open while the broker serves."""
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_stop_signals(loop, stop.set)
    on_hangup(loop, stop.set)
    had_terminal = has_terminal()
    server = await Server.start(settings, on_outgrown=stop.set)
    if server.has_tls:
        on_hangup(loop, partial(_hang_up, server, stop, had_terminal))
    gc.collect()
    gc.freeze()  # what was imported and opened stays: the collector can skip it
    print(server.ready_line, flush=True)  # noqa: T201 - the contract: one readiness line on stdout
    notify("READY=1")
    async with beside(server.http_url):
        await stop.wait()
    log.info("broker.stopping")
    notify("STOPPING=1")
    task = asyncio.current_task()
    assert task is not None
    on_stop_signals(loop, task.cancel)
    await server.close()
    log.info("broker.stopped")
    server.check_level()


def _hang_up(server: Server, stop: asyncio.Event, had_terminal: bool) -> None:
    """Handle SIGHUP of a broker with TLS: at the end of its terminal stop, else read the certificates again."""
    if had_terminal and not has_terminal():
        stop.set()
    else:
        server.reload_certificates()


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
    return plan_grpc_connections(raise_descriptor_limit(others + GRPC_DESCRIPTORS * wanted + KEPT), wanted, others)


def _http_places(settings: Settings) -> ConnectionLimits:
    wanted, native = settings.limits.http_connections_max, settings.limits.connections_max
    return plan_http_connections(raise_descriptor_limit(native + wanted + KEPT), wanted, native)


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


def _advertised(listener: tuple[str, int], configured: str, another: str) -> str:
    """Return the host:port of a listener that clients are told; empty if there is no such listener.

    `another` is an address whose host is used if no address of this listener is configured.
    """
    host, port = listener
    if not port or configured:
        return configured if port else ""
    return f"{another.rpartition(':')[0] or bracketed(_reachable(host))}:{port}"


def _reachable(host: str) -> str:
    """Return an address that clients can connect to: for a broker that listens on all addresses, the loopback one."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
