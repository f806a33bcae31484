"""What the data operations of the HTTP listener share: publisher, requests, consumers, streams, webhooks."""

from __future__ import annotations

from pydanube.broker import Broker
from pydanube.gateway.publish_memory import PublishMemory
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

    def __init__(
        self, broker: Broker, settings: HttpSettings, clock: Clock, tasks: Tasks, memory: PublishMemory | None
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.clock = clock
        self.publisher = Publisher(broker, memory)
        self.requester = HttpRequester(broker, memory)
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
