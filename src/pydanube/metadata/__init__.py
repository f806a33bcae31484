"""The metadata store: the facts on which all brokers must agree, such as namespaces, topics, ledgers, owners and ids.

Lives here      the store interface, its implementations (embedded: SQLite; etcd: clusters), opening, which chooses one
                of them, and what is built on the interface alone (id_counters; following: memory that agrees with
                it; packing: records as values; writes: changes that are tried again when another broker was faster;
                record_table: records in memory, with such changes; levels: which releases can use it)
May import      model, codec, runtime
Flows through   small values, written with compare-and-set, read by key or prefix, watched from a revision
Never           messages, cursors, anything written per message; knowledge of what the values mean
"""

from .embedded import EmbeddedStore
from .id_counters import take_ids
from .store import (
    Compacted,
    Compare,
    Delete,
    Event,
    GrantedLease,
    KeyValue,
    MetadataStore,
    Put,
    StoreIdentity,
    Succession,
    TransactionResult,
    fits_transaction,
    list_all,
    split_writes,
)

__all__ = [
    "Compacted",
    "Compare",
    "Delete",
    "EmbeddedStore",
    "Event",
    "GrantedLease",
    "KeyValue",
    "MetadataStore",
    "Put",
    "StoreIdentity",
    "Succession",
    "TransactionResult",
    "fits_transaction",
    "list_all",
    "split_writes",
    "take_ids",
]
