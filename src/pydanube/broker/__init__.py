"""OWNERSHIP. Each partition and subscription has one owner, and all listeners call one facade.

Lives here      the facade (facade.py), handlers.py: which function carries out each operation, and context.py: what
                nearly every part needs
                redrive lists dead letters and sends them back; leftovers lists and salvages what a broker has of
                partitions that others took over
                maintenance drains, resumes and removes brokers
                unread_memory bounds what is read for clients and not received by them
                peer_requests answers what only other brokers may ask
                cluster/        the other brokers: who lives, who owns which partition, how to reach them
                registry/       the namespaces, topics, subscriptions and producers that exist, and their records
                partitions/     open partitions: publish, fetch, recovery, ownership, limits
                topics/         lists, policies, changes, retention, time to live, deletion
                producers/      who publishes, and publishing wherever a partition is
                subscriptions/  delivery to attached consumers, acks, redelivery, dead letters
                schemas/        the schema registry, and the check of published payloads
                security/       who callers are, the rules of what they may do, and the audit
                quotas/         how much principals and namespaces may use, and those that wait for it
                staging/        batches of Spark queries, staged and published all at once
                tiering/        object storage: uploads, restore, administration
                observe/        statistics, metrics, traces
May import      model, operations, codec, formats, core, runtime, metadata, storage
Flows through   a listener hands over a batch; decide, stamp, log, visible, answer, deliver
Never           sockets, frames, HTTP; a decision that core/ could make without I/O
"""

from pydanube.broker.observe.metrics import ListenerMetrics
from pydanube.broker.partitions.partition import FetchResult
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.producers.inboxes import INBOX_BYTES, Inbox
from pydanube.broker.producers.producers import Producer, shared_id
from pydanube.broker.producers.requesting import RequestMessage
from pydanube.broker.producers.shared_producers import SharedProducer
from pydanube.broker.quotas.throttle import WAIT_S_MAX as QUOTA_WAIT_S_MAX
from pydanube.broker.staging.stage_writer import SectionRequest, StageRequest
from pydanube.broker.subscriptions.consumer import Consumer, Sink, close_calls
from pydanube.broker.subscriptions.consumer_sessions import ConsumerSessions
from pydanube.broker.subscriptions.subscriptions import Attachment
from pydanube.model.messages import Published

from .facade import Broker, BrokerParts
from .unread_memory import SMALL_BYTES as UNREAD_SMALL_BYTES
from .unread_memory import STALLED_S as UNREAD_STALLED_S
from .unread_memory import UnreadMemory, UnreadPart

__all__ = [
    "INBOX_BYTES",
    "QUOTA_WAIT_S_MAX",
    "UNREAD_SMALL_BYTES",
    "UNREAD_STALLED_S",
    "Attachment",
    "Broker",
    "BrokerParts",
    "Consumer",
    "ConsumerSessions",
    "FetchResult",
    "Inbox",
    "ListenerMetrics",
    "Producer",
    "PublishDone",
    "Published",
    "RequestMessage",
    "SectionRequest",
    "SharedProducer",
    "Sink",
    "StageRequest",
    "UnreadMemory",
    "UnreadPart",
    "close_calls",
    "shared_id",
]
