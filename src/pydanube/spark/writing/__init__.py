"""Writing topics exactly once: tasks stage encoded batches, and the driver commits them."""
