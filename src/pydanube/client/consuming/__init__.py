"""The consumer: prefetch and flow control, received messages, acks, nacks and ack timeouts."""
