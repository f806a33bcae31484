"""Administration of namespaces, topics, subscriptions, policies and object storage."""
