"""Durable storage: the write-ahead log, the tail cache, one stream over both, slices, tiering, the data directory.

Lives here      files, syncs, recovery, indexes, caches
May import      model, codec, core, runtime, metadata
Flows through   stamped batches and state records go in; the same bytes come out, with their checksums verified
Never           topics, subscriptions or permissions (only ledgers, entries and offsets); an ack before a sync
"""
