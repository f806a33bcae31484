"""The namespaces, topics, subscriptions, named producers and ledgers that exist, in the metadata store and in
memory."""
