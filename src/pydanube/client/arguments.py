"""The keyword arguments of clients, producers, consumers and readers, for signatures that share them.

What they mean is said by `connect`, `Client.producer`, `Client.consumer`, `Client.reader` and `Client.read`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Required, TypedDict

from pydanube.client.connection.credentials import AnyToken
from pydanube.client.connection.observing import PartitionHook
from pydanube.client.positions import AnyPosition
from pydanube.client.producing.message_intake import Attributes
from pydanube.client.producing.partitioning import PartitionBy
from pydanube.client.tables.read_types import AnyWhere, DirectRead, OnDecodeError
from pydanube.client.typed.schema_sources import SchemaSource
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionTypeName

from .settings import AccessName, CompressionName


class CredentialArguments(TypedDict, total=False):
    token: AnyToken | None
    api_key: AnyToken | None
    token_file: str | PathLike[str] | None


class ConnectArguments(CredentialArguments, total=False):
    profile: str | None
    tls_ca_file: str | PathLike[str] | None
    tls_cert_file: str | PathLike[str] | None
    tls_key_file: str | PathLike[str] | None
    tls_insecure_skip_verify: bool | None


class ProducerArguments(TypedDict, total=False):
    name: str | None
    access: AccessName
    partition_by: PartitionBy
    compression: CompressionName | None
    batch_bytes: int
    batch_messages: int
    linger_ms: float
    in_flight_batches: int
    queue_messages: int
    queue_bytes: int
    timeout: float | None
    refresh_seconds: float
    create_topic: bool
    on_partition: PartitionHook | None


class TypedProducerArguments(ProducerArguments, total=False):
    subject: str | None
    register_schema: bool
    enforce: bool


class ConsumerArguments(TypedDict, total=False):
    subscription: Required[str]
    type: SubscriptionTypeName | None
    start: AnyPosition
    name: str | None
    priority: int
    key_filters: Iterable[str]
    failure_policy: FailurePolicy | None
    ack_timeout: float | None
    prefetch_messages: int
    prefetch_bytes: int
    ack_linger_ms: float
    refresh_seconds: float
    create_topic: bool
    on_partition: PartitionHook | None


class RequestArguments(TypedDict, total=False):
    timeout: float | None
    key: str | None
    attributes: Attributes | None
    schema: type[Any] | SchemaSource | None


class GatherArguments(RequestArguments, total=False):
    replies_max: int


class ReaderArguments(TypedDict, total=False):
    partition: int
    start: AnyPosition
    end: AnyPosition | None
    fetch_bytes: int


class ReadArguments(TypedDict, total=False):
    start: AnyPosition
    end: AnyPosition
    columns: Sequence[str] | None
    where: AnyWhere | None
    errors: OnDecodeError
    decode: bool
    schema_version: int | None
    direct_read: DirectRead
    store: str | None
    store_settings: Mapping[str, str] | None
