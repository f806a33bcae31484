"""The client library. Producers, consumers, readers and administration over the native protocol.

Lives here      sessions that survive a broker's restart, the batches a producer fills, the acks a consumer collects
May import      model, codec, runtime
Flows through   payloads become one batch, which is sent as it is; delivered batches become messages when they are read
Never           broker, storage or gateway code; a task or a thread that outlives its context manager
"""

from __future__ import annotations

from pydanube.client.admin.dead_letters import DeadLetter, DeadLetters, Redriven
from pydanube.client.admin.schemas import Schemas
from pydanube.client.blocking.client import (
    BlockingClient,
    BlockingDeadLetters,
    BlockingProducer,
    BlockingSchemas,
    BlockingStager,
    connect_blocking,
)
from pydanube.client.blocking.streams import BlockingConsumer, BlockingReader
from pydanube.client.consuming.consumer import Consumer
from pydanube.client.consuming.messages import Message, PeekedMessage, ReceivedBatch
from pydanube.client.history.reader import Reader
from pydanube.client.producing.producer import Producer
from pydanube.client.producing.receipts import Receipt, Receipts
from pydanube.client.producing.staged_writes import Stager

from .client import Client, connect

__all__ = [
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDeadLetters",
    "BlockingProducer",
    "BlockingReader",
    "BlockingSchemas",
    "BlockingStager",
    "Client",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "Message",
    "PeekedMessage",
    "Producer",
    "Reader",
    "Receipt",
    "Receipts",
    "ReceivedBatch",
    "Redriven",
    "Schemas",
    "Stager",
    "connect",
    "connect_blocking",
]
