"""Retention, time to live and eviction of messages, and the deletion of topics, by command or because they are
unused."""
