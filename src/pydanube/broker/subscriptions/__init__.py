"""Running subscriptions: delivery to consumers, acks, redelivery and dead letters.

subscriptions           operations by name, over all partitions of a topic: create, attach, seek, describe, delete
subscription            one subscription of one partition: reads, delivers, acks, seeks; `core.dispatch` decides
single_acks             acks and nacks of clients that name a message, and no consumer
consumer_sessions       consumers of clients without a connection of their own
consumer                one attached consumer, as the listeners use it
ack_batching            joins scattered acks before they are processed
delivery_batches        the bytes that are sent for the rows a consumer gets
message_reading         reads single messages of batches
peeking                 messages of a backlog, with their contents and delays
dead_letters            publishes messages that failed too often to the dead letter topic
scheduling              how much a dispatch loop does before other tasks run
counters                statistics
"""
