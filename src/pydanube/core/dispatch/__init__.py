"""Who gets which rows, and what has been settled. One cursor mechanism; each subscription type is a small policy over it."""
