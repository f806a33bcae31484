"""The areas of a client's administration: topics, subscriptions, schemas, access control, dead letters, storage.

Each area is a class of written-out methods, an `Area`, which the client has as a property (`client.topics`) and the
blocking client as a class of one line for each method in `blocking/areas.py`. The name that the client itself has for a
method (`client.create_topic`) is one line of `aliases.py`, and one of `BlockingAliases`.
"""
