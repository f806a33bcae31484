"""The one place that names this release."""

__version__ = "0.1.0"
