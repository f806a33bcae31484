"""The producer: batching, partitioning, back-pressure, retries, receipts, staged writes.

producer                what users call: send, send_nowait, send_many, queue_many, flush
message_intake          checks messages, and splits bulk sends
partitioning            chooses the partition of a message
producer_buffer         makes callers wait while too much is unsettled
pending_batches         decides: fills batches, numbers them, and marks which are sent again
partition_producer      does: keeps a session at the owner of a partition and sends the batches
trace_context           adds the current span of OpenTelemetry to the attributes of messages
receipts                where the messages were stored
staged_writes           stores batches invisibly, and commits them
"""
