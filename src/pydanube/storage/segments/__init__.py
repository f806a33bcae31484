"""Tiered storage: uploads ranges of the log to object storage, lists them in the catalog, and reads them back.

uploader                uploads ranges of the log; `core.tiering` decides which
recovered_upload        makes segments of batches that a taker found in slices
catalog                 which object holds which offsets, in the metadata store
history                 reads segments, with a cache
merger                  merges small segments
garbage_collector       deletes objects that are not needed any more
manifest                writes all metadata into one object, for disaster recovery
broker_positions        what each broker of a cluster adds to the manifest: cursors and end offsets of its partitions
store_ownership         which broker may write to the store
store_proof             whether all brokers of a cluster see the same store
verifier                compares objects with the catalog
time_limits             gives every call to a store a time limit
"""
