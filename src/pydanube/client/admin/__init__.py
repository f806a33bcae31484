"""Administration of namespaces, topics, subscriptions, policies, dead letters and object storage; listings in pages."""
