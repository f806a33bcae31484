"""Connections to brokers: addresses, lookup of partition owners, requests and answers, keep-alive.

connection              one connection to one broker: frames, requests and answers, publish window, keep-alive
pending_answers         what the requests of a connection wait for
routing                 which broker owns a partition; all connections of a client
owner_epochs            the highest epoch seen of each partition's owner; answers with a lower one are refused
owner_session           finds the owner, opens a handle there, and opens it again after a disconnect
credentials             the token that a client shows, and shows anew before it ends
observing               events of partitions for hooks of the user, and counters
discovery               asks HTTP listeners where the native ones are
servers, foreign_peer   parse addresses; recognise a server that is not a broker
"""
