"""Dispatch of one subscription on one partition: which rows go to which consumer, and what is acknowledged.

The cursor is the same for every subscription type; a type is a policy over it (`policy`).

dispatcher              the state of every message, and what is delivered next
policy                  the interface of a subscription type
single_active, shared, key_shared    the types
key_table, key_filters  which member a key belongs to
members, in_flight      attached consumers and their credit; what each of them has
failed_messages         failed messages and their redelivery
ack_timeouts            messages in flight that time out, where the broker counts this
ack_pace                how much is in flight to consumers that are slower than the ack timeout
cursor, ranges          what is acknowledged, as ranges of offsets
"""
