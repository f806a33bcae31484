"""The table of all operations of the REST API, and the native requests that have none."""

from __future__ import annotations

from typing import Any, Final

from pydanube.broker.handlers import HANDLERS
from pydanube.codec.native import requests as wire

from . import (
    brokers,
    consuming,
    dead_letters,
    publishing,
    stored_messages,
    subscriptions,
)
from .declared import rest_operations
from .operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *brokers.OPERATIONS,
    *subscriptions.OPERATIONS,
    *dead_letters.OPERATIONS,
    *stored_messages.OPERATIONS,
    *publishing.OPERATIONS,
    *consuming.OPERATIONS,
    *(one for kind in HANDLERS for one in rest_operations(kind)),
)

NOT_OFFERED: Final[dict[type[Any], str]] = {
    wire.Authenticate: "every HTTP request carries its own token or API key, so none is shown again later",
    wire.FenceProducers: "only brokers of a cluster ask each other, when a producer is opened",
    wire.CountProducers: "only brokers of a cluster ask each other, when a producer is opened",
    wire.OpenForwarder: "only brokers of a cluster forward batches to each other",
    wire.OpenProducer: "a producer is a handle of a native connection; HTTP publishes without one",
    wire.CloseProducer: "a producer is a handle of a native connection; HTTP publishes without one",
    wire.Subscribe: "a consumer is a handle of a native connection; HTTP consumes through a session of its own",
    wire.CloseConsumer: "a consumer is a handle of a native connection; HTTP consumes through a session of its own",
}
"""Why requests of the native protocol have no operation. Every other request has one, or says itself why it has none; a
test compares them."""
