"""A steady feed of messages that carry their send time, and a listener that measures their age."""

from __future__ import annotations

import struct
import threading
import time
from types import TracebackType
from typing import Self

from pydanube.client import BlockingClient

STAMP = struct.Struct("<d92x")
"""A message of 100 bytes: the time it was due, on the monotonic clock that all threads share."""

TICK_SECONDS = 0.005


class Feed(threading.Thread):
    """Publishes at a fixed rate; a late message does not delay the schedule."""

    def __init__(self, client: BlockingClient, topic: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._rate = client, topic, rate
        self._over = threading.Event()

    def run(self) -> None:
        with self._client.producer(self._topic) as producer:
            begin, sent = time.monotonic(), 0
            while not self._over.wait(TICK_SECONDS):
                due = int((time.monotonic() - begin) * self._rate)
                for number in range(sent, due):
                    producer.send_nowait(STAMP.pack(begin + number / self._rate))
                sent = due

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()


class Listener:
    """Receives what a stream has written, and records the age of each message."""

    def __init__(self, client: BlockingClient, topic: str) -> None:
        self._reader = client.reader(topic, start="earliest")
        self.delays_ms: list[float] = []

    def listen(self, warm_up_seconds: float, seconds: float) -> None:
        """Receive until the end. The warm-up starts at the first message, because a query takes a while to start."""
        counts_from = 0.0
        while not counts_from or time.monotonic() < counts_from + seconds:
            batch = self._reader.receive_batch(timeout=120)
            now = time.monotonic()
            counts_from = counts_from or now + warm_up_seconds
            if now >= counts_from:
                self.delays_ms += [(now - STAMP.unpack(payload)[0]) * 1000 for payload in batch.payloads]

    def percentile(self, part: float) -> float:
        ordered = sorted(self.delays_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    def __enter__(self) -> Self:
        self._reader.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.close()
