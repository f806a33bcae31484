"""The brokers of a cluster as one of them sees it: who lives, who owns which partition, how to reach the others.

cluster_membership   the membership of a broker of a cluster: its session is kept alive, the others are followed
compaction           the coordinator has the metadata forget old events
freshness            how old answers from memory may be
gathering            asks the owners of partitions, for requests about whole topics
joining              which broker of which cluster a data directory is, when a broker starts
loads                how much each broker does
membership           this broker's session, the living brokers, and the one that does the work only one should do
node_records         the keys and values of brokers in the metadata
owners               the owner of every partition, from the partitions' records
parts                all of it together, as the rest of the broker gets them
peers                requests to other brokers; gateway.native implements them
placing              gives partitions that have no owner to living brokers
routing              where a partition is served, and what its clients are told
takeover             gives up what only a lost broker has of a partition, so that another can go on
topic_addresses      where the partitions of a topic are, for clients that ask for it
upgrade              raises the feature level of the metadata, when all living brokers know the new one

A broker alone has a membership, owners and peers too (`SoleMembership`, `SoleOwners`, `NoPeers`): it owns everything,
needs no lease, and follows its own metadata as a broker of a cluster does.
"""
