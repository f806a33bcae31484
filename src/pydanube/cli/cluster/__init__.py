"""The brokers of a cluster on the command line."""
