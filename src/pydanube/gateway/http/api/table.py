"""The table of all operations of the REST API, and the native requests that have none."""

from __future__ import annotations

from typing import Any, Final

from pydanube.codec.native import requests as wire

from . import (
    backlogs,
    brokers,
    consuming,
    dead_letters,
    namespaces,
    publishing,
    schemas,
    staged_queries,
    storage,
    subscriptions,
    topic_schemas,
    topics,
)
from .operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *brokers.OPERATIONS,
    *namespaces.OPERATIONS,
    *topics.OPERATIONS,
    *subscriptions.OPERATIONS,
    *backlogs.OPERATIONS,
    *dead_letters.OPERATIONS,
    *schemas.OPERATIONS,
    *topic_schemas.OPERATIONS,
    *storage.OPERATIONS,
    *staged_queries.OPERATIONS,
    *publishing.OPERATIONS,
    *consuming.OPERATIONS,
)

NOT_OFFERED: Final[dict[type[Any], str]] = {
    wire.OpenProducer: "a producer is a handle of a native connection; HTTP publishes without one",
    wire.CloseProducer: "a producer is a handle of a native connection; HTTP publishes without one",
    wire.Subscribe: "a consumer is a handle of a native connection; HTTP consumes through a session of its own",
    wire.CloseConsumer: "a consumer is a handle of a native connection; HTTP consumes through a session of its own",
    wire.CommitStages: "stages are batches in the native format, which only a native connection can send",
}
"""Why requests of the native protocol have no operation. Every other request has one; a test compares them."""
