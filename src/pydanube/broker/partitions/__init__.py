"""The partitions that this broker owns: how they are opened, published to, read, limited and closed."""
