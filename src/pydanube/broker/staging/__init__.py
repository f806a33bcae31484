"""Staged writes: batches that are stored unseen, and published together by one commit."""
