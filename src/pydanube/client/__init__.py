"""THE SDK. Producers, consumers, readers and administration over the native protocol.

Lives here      sessions that survive a broker's restart, the batches a producer fills, the acks a consumer gathers
May import      model, codec, runtime
Flows through   payloads become one batch, the batch goes out as it is; delivered batches become messages when looked at
Never           broker, storage or gateway code; a task or a thread that outlives its context manager
"""

from __future__ import annotations

from .blocking import BlockingClient, BlockingDeadLetters, BlockingProducer, BlockingStager, connect_blocking
from .blocking_streams import BlockingConsumer, BlockingReader
from .client import Client, connect
from .consumer import Consumer
from .dead_letters import DeadLetter, DeadLetters, Redriven
from .message import Message, PeekedMessage, ReceivedBatch
from .producer import Producer
from .reader import Reader
from .receipts import Receipt, Receipts
from .staging import Stager

__all__ = [
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDeadLetters",
    "BlockingProducer",
    "BlockingReader",
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
    "Stager",
    "connect",
    "connect_blocking",
]
