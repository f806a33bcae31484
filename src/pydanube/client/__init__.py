"""The client library. Producers, consumers, readers and administration over the native protocol.

Lives here      sessions that survive a broker's restart, the batches a producer fills, the acks a consumer collects
May import      model, operations, codec, formats, runtime
Flows through   payloads become one batch, which is sent as it is; delivered batches become messages when they are read
Never           broker, storage or gateway code; a task or a thread that outlives its context manager

Importing this package is cheap, as for `pydanube` itself: a module is imported when one of its names is used first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydanube.runtime.late_imports import late

if TYPE_CHECKING:
    from pydanube.client.admin.access import Access
    from pydanube.client.admin.dead_letters import DeadLetter, DeadLetters, Redriven
    from pydanube.client.admin.schemas import Schemas
    from pydanube.client.blocking.areas import BlockingAccess, BlockingDeadLetters, BlockingSchemas
    from pydanube.client.blocking.client import (
        BlockingClient,
        BlockingProducer,
        BlockingStager,
        connect_blocking,
    )
    from pydanube.client.blocking.streams import BlockingConsumer, BlockingReader
    from pydanube.client.client import Client, connect
    from pydanube.client.connection.observing import ClientMetrics, PartitionEvent
    from pydanube.client.consuming.consumer import Consumer
    from pydanube.client.consuming.messages import Message, PeekedMessage, ReceivedBatch
    from pydanube.client.history.reader import Reader
    from pydanube.client.producing.producer import Producer
    from pydanube.client.producing.receipts import Receipt, Receipts
    from pydanube.client.producing.staged_writes import Stager
    from pydanube.client.replies import Reply
    from pydanube.client.tables.topic_rows import TopicRows

__all__ = [
    "Access",
    "BlockingAccess",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDeadLetters",
    "BlockingProducer",
    "BlockingReader",
    "BlockingSchemas",
    "BlockingStager",
    "Client",
    "ClientMetrics",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "Message",
    "PartitionEvent",
    "PeekedMessage",
    "Producer",
    "Reader",
    "Receipt",
    "Receipts",
    "ReceivedBatch",
    "Redriven",
    "Reply",
    "Schemas",
    "Stager",
    "TopicRows",
    "connect",
    "connect_blocking",
]

_MODULES: Final = {
    "Access": ".admin.access",
    "BlockingAccess": ".blocking.areas",
    "BlockingClient": ".blocking.client",
    "BlockingConsumer": ".blocking.streams",
    "BlockingDeadLetters": ".blocking.areas",
    "BlockingProducer": ".blocking.client",
    "BlockingReader": ".blocking.streams",
    "BlockingSchemas": ".blocking.areas",
    "BlockingStager": ".blocking.client",
    "Client": ".client",
    "ClientMetrics": ".connection.observing",
    "Consumer": ".consuming.consumer",
    "DeadLetter": ".admin.dead_letters",
    "DeadLetters": ".admin.dead_letters",
    "Message": ".consuming.messages",
    "PartitionEvent": ".connection.observing",
    "PeekedMessage": ".consuming.messages",
    "Producer": ".producing.producer",
    "Reader": ".history.reader",
    "Receipt": ".producing.receipts",
    "Receipts": ".producing.receipts",
    "ReceivedBatch": ".consuming.messages",
    "Redriven": ".admin.dead_letters",
    "Reply": ".replies",
    "Schemas": ".admin.schemas",
    "Stager": ".producing.staged_writes",
    "TopicRows": ".tables.topic_rows",
    "connect": ".client",
    "connect_blocking": ".blocking.client",
}
"""The module of each name that is exported here."""
__getattr__ = late(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
