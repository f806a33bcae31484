"""Role consumer: takes everything through a subscription of its own, as batches or message by message."""

from __future__ import annotations
