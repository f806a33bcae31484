"""Producers: who publishes to which topic.

producers           the producers that are connected, their exclusive access and what fences them
shared_producers    producers of clients that have no connection of their own
names               forgets the names of producers that were not used for long
publishing          publishes single batches, wherever their partition is: dead letters, audit events, HTTP
requesting          publishes requests: messages whose caller waits for replies
inboxes             takes replies to the callers that wait for them
"""
