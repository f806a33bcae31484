"""Running subscriptions: delivery to consumers, acks, redelivery and dead letters."""
