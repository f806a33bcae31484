"""What exists: namespaces, topics, subscriptions, named producers and ledgers, in the metadata store and in memory."""
