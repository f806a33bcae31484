"""What a broker tells about itself: counts and rates, statistics of topics and of the cluster, and traces.

metrics             counters of the broker, of its listeners and of its log
metric_families     the same as metrics of Prometheus, with a series for each topic
statistics          rates and backlogs of topics, gathered from the owners of their partitions
summaries           what the statistics of one topic say in a line
cluster_status      the brokers, what each of them does, and what waits for brokers that are away
tracing             spans of batches
"""
