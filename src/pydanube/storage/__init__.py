"""DURABILITY. What keeps bytes: the write-ahead log, the tail cache, one stream over both, the data directory.

Lives here      files, syncs, recovery, indexes, caches
May import      model, codec, core, runtime, metadata
Flows through   stamped batches and state records go in; the same bytes come out, checked
Never           topics, subscriptions or who may do what: it knows ledgers, entries and offsets; an ack before a sync
"""
