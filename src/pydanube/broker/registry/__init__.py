"""The namespaces, topics, subscriptions, named producers and ledgers that exist, in the metadata store and in
memory.

registry                namespaces, topics, subscriptions and named producers; every change goes through it
consumers               consumers of the Danube gRPC API, found again by their ids after a restart
records                 the keys and values in the metadata store
effective_policies      the policies in force: of the topic, its namespace or the settings
ids                     numbers that are never used twice
producer_ids            ids of producers: such a number, and a mark of the principal
tombstones              which ledgers were dropped, so that lost metadata is noticed
"""
