"""Subscriptions at work: delivery to consumers, acks and redelivery, dead letters."""
