"""Reading topics: planning on the driver, ranges read by tasks as Arrow record batches.

batch_reader            batch reads, as Spark calls them
stream_reader           stream reads, as Spark calls them
stream_driver           decides where each micro-batch of a stream ends
planning                decides which offsets are read, and in which tasks
bounds, offsets         where reading starts and ends; the progress of a stream and its JSON
broker_queries          what the driver asks the brokers
fetching                reads the ranges of a task, from the broker or the object store
direct_reads            the object store: finds and reads the segments of a range
pushdown, data_loss     what filters rule out; what should have been read and is gone
progress_subscription   a subscription that follows the stream
"""
