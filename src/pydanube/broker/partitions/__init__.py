"""The partitions that this broker owns: how they are opened, published to, read, limited and closed.

open_partitions         opens a partition when it is first needed, and keeps it open
own_partitions          in a cluster: opens the partitions that are this broker's
moves                   in a cluster: gives single partitions to the brokers that are named for them
draining                in a cluster: gives partitions to other brokers when this one stops or is drained
log_carrying            puts what only this broker's log has of a partition where its next owner finds it
ownership, partition_recovery
                        what opening does: fence the former owner, then read back what it left
partition               what both kinds of partitions share
stored_partition        a partition of a reliable topic: publish, fetch, trim
opening_pauses          when a partition that could not be opened is tried again
non_reliable_partition  a partition of a non-reliable topic: delivers at once and keeps nothing
publish_checks          whether a batch is whole and within the topic's limits
decompression           how much one turn of the loop unpacks
publish_queue           publishes that wait for the publish rate, a ledger or reserved offsets
broker_slices           the slices of this broker: its writer for each session, and what they need
store_loss              in a cluster: gives `stored` partitions away when this broker alone has lost the object store
sliced_log              where a `stored` partition appends: the local log, and slices
unlisted_bytes          counts and limits what is in slices and not in the catalog yet
slice_repair            replaces a damaged slice, so that the partitions that wait for it open
slice_takeover          takes a `stored` partition over from the slices of former owners
state_ledger            writes cursors and known producers to the log
uploaded_producers      the producer table as of the end of what is uploaded
rate_limits             publish and dispatch rates
backlog_quota           how large the backlog of a subscription may be
partition_table         the open partitions by topic id and index
"""
