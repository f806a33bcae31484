"""The metadata store of a cluster, in etcd. Needs the extra `etcd`; `place` alone does not.

place       which etcd, which prefix, TLS and user, as the settings give them
store       `EtcdStore`: the interface in terms of etcd's requests; joins reads, keeps leases alive
watching    one watch, which resumes after every loss of a connection
client      members and their channels: which one is used, deadlines, authentication
errors      what an error of etcd means for the request that met it
rpc         messages and methods, from the descriptor set of etcd.proto
"""
