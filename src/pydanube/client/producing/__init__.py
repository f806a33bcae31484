"""The producer: batching, partitioning, back-pressure, retries, receipts, staged writes."""
