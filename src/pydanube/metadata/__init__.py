"""AGREEMENT. The few facts everybody must see alike: namespaces, topics, ledgers, owners, epochs, ids.

Lives here      the store interface, its embedded form, and what is built from it alone (counters)
May import      model, codec, runtime
Flows through   small values, written by comparing first, read by key or prefix, watched from a revision
Never           messages, moving cursors, anything written per message; knowledge of what the values mean
"""

from .counters import take_ids
from .embedded import EmbeddedStore
from .store import (
    Compacted,
    Compare,
    Delete,
    Event,
    KeyValue,
    MetadataStore,
    Put,
    StoreIdentity,
    Succession,
    TransactionResult,
    list_all,
)

__all__ = [
    "Compacted",
    "Compare",
    "Delete",
    "EmbeddedStore",
    "Event",
    "KeyValue",
    "MetadataStore",
    "Put",
    "StoreIdentity",
    "Succession",
    "TransactionResult",
    "list_all",
    "take_ids",
]
