"""Staged writes: batches that are stored invisibly, and published together by one commit.

staging                 what the listeners call: stage, commit, list and forget queries; `core.staging` decides
stage_writer            stores a stage as one object
decisions               carries out committed batches, also after a restart; each owner publishes to its partitions
stage_publisher         publishes them, partition by partition
stage_reader            reads stages from the object store
query_records           the records of queries in the metadata
expiry                  deletes what was not committed in time
"""
