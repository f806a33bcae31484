"""The blocking client: thin wrappers over the async objects, on an event loop in a background thread."""
