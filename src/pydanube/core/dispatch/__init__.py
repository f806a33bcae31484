"""Who gets which rows, and what has been settled: one cursor mechanism, and each subscription type a policy over it."""
