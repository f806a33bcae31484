"""Reading by offset, without a subscription."""
