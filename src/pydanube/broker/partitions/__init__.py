"""The partitions that this broker owns: opened by recovery, written by one owner each, closed in order."""
