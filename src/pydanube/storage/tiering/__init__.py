"""Tiered storage: uploads ranges of the log to object storage, lists them in the catalog, and reads them back."""
