"""Quotas: how much each principal, and each namespace, may use.

Lives here      throttle (what listeners and partitions ask: it lets callers go on, wait, or refuses them)
                stored_bytes (sums what topics store, and says which of them are full)
                administration (what callers see and change of quotas, and their records in the metadata)
May import      model, core, runtime, metadata, and of the broker: registry, metrics, statistics
Flows through   a listener asks before it does something, and tells afterwards how large it was
Never           a wait of one subject that holds up another one; a limit on brokers of the cluster
"""
