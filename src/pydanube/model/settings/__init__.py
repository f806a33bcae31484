"""SETTINGS. Every setting of a broker, as values."""
