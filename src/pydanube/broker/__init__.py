"""OWNERSHIP. One owner per partition and subscription, and one facade that all doors call.

Lives here      the facade, the registry of what exists, partitions and subscriptions at work
May import      model, codec, core, runtime, metadata, storage
Flows through   a door hands over a batch; decide, stamp, log, visible, deliver, answer
Never           sockets, frames, HTTP; a decision that core/ could make without I/O
"""

from pydanube.broker.partitions.partition import FetchResult, PublishDone, Published
from pydanube.broker.staging.intake import SectionRequest, StageRequest
from pydanube.broker.staging.staging import CommitRequest, Committed
from pydanube.broker.subscriptions.consumer import Consumer, Sink, close_calls
from pydanube.broker.subscriptions.subscriptions import Attachment

from .facade import Broker, BrokerSettings
from .producers import Producer

__all__ = [
    "Attachment",
    "Broker",
    "BrokerSettings",
    "CommitRequest",
    "Committed",
    "Consumer",
    "FetchResult",
    "Producer",
    "PublishDone",
    "Published",
    "SectionRequest",
    "Sink",
    "StageRequest",
    "close_calls",
]
