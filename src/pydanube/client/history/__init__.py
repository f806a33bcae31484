"""Reads by offset, without a subscription: from brokers (readers, fetches of a range), and which segments to read."""
