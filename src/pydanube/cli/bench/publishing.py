"""Role producer: hands prepared payloads to the client as fast as acks come back, or one by one on schedule."""

from __future__ import annotations
