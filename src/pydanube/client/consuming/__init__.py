"""The consumer: prefetch and flow control, messages, acks and ack timeouts, dead letters."""
