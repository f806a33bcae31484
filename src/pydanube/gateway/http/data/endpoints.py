"""What the data operations of the HTTP listener share: publisher, requests, consumers, streams, webhooks."""

from __future__ import annotations

from pydanube.gateway.door import Door
from pydanube.model.settings.sections import HttpSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .events import TopicEvents
from .publishing import Publisher
from .requesting import HttpRequester
from .sessions import Sessions
from .webhooks import Webhooks


class DataEndpoints:
    """The data side of one HTTP listener."""

    def __init__(self, door: Door, settings: HttpSettings, clock: Clock, tasks: Tasks) -> None:
        self.broker = broker = door.broker
        self.settings = settings
        self.clock = clock
        self.publisher = Publisher(door)
        self.requester = HttpRequester(door)
        self.sessions = Sessions(broker, clock, tasks, settings.consumers_max)
        self.webhooks = Webhooks(settings.webhooks, self.publisher, clock)
        self.topic_streams: set[TopicEvents] = set()

    @property
    def heartbeat_s(self) -> float:
        return self.settings.heartbeat_ms / 1000

    def drain(self) -> None:
        """End all polls and streams; no consumer is opened any more."""
        self.sessions.drain()
        for stream in list(self.topic_streams):
            stream.wake()

    def close(self) -> None:
        self.sessions.close_all()
