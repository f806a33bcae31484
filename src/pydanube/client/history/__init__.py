"""Reads by offset, without a subscription: from brokers (readers, fetches of a range), and which segments to read.

reader                  reads one partition by offset, in order, and prefetches
range_fetch             fetches a range for programs that read much
coverage                which segments make up the history of a partition, if several hold the same offsets
"""
