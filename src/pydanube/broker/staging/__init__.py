"""Staged writes: batches that are stored invisibly, and published together by one commit."""
