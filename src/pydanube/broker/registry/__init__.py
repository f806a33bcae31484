"""The namespaces, topics, subscriptions, named producers and ledgers that exist, in the metadata store and in
memory.

registry                namespaces, topics, subscriptions and named producers; every change goes through it
consumers               consumers of the Danube gRPC API, found again by their ids after a restart
records                 the keys and values in the metadata store
policies                effective policies: of the topic, its namespace or the settings
ids                     numbers that are never used twice
tombstones              which ledgers were dropped, so that lost metadata is noticed
"""
