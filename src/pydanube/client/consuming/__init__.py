"""The consumer: prefetch and flow control, received messages, acks, nacks and ack timeouts.

consumer                what users call: receive, ack, nack, seek, flush
message_stream          the async iterator that consumers and readers share
receiver_queue          prefetched batches that wait for the user
partition_sources       finds the partitions, attaches to each, sends acks, seeks
partition_source        one partition: session at the owner, deliveries, flow control
acks                    collects acks and nacks, and keeps acks until they are confirmed; ack timeouts
messages                received messages and batches
"""
