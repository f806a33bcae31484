"""A message broker in Python: work queues, publish/subscribe, and event streams that end in a data lake.

```python
async with pydanube.connect("danube://127.0.0.1:6655") as client: ...
with pydanube.connect_blocking("danube://127.0.0.1:6655") as client: ...
async with pydanube.testing.broker() as url: ...
```

The names exported here are the public API and stay. Importing this package is cheap: the modules behind a name are
imported when the name is used first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from .model.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DanubeError,
    Denied,
    Full,
    Held,
    Invalid,
    NotFound,
    NotOwner,
    Refused,
    RequestFailed,
    StaleEpoch,
    Unauthenticated,
    Unavailable,
)
from .model.failure import Backoff, FailurePolicy, Poison
from .model.schemas import (
    Binding,
    Compatibility,
    Framing,
    Incompatibility,
    RegisteredVersion,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    SchemaVersion,
    SubjectDescription,
    ValidationPolicy,
)
from .version import __version__

if TYPE_CHECKING:
    from . import fastapi, testing
    from .app import App, Depends, PartialFailure, Reject, Retries, Retry, Tick
    from .client import (
        BlockingClient,
        BlockingConsumer,
        BlockingDeadLetters,
        BlockingProducer,
        BlockingReader,
        BlockingSchemas,
        BlockingStager,
        Client,
        ClientMetrics,
        Consumer,
        DeadLetter,
        DeadLetters,
        Message,
        PartitionEvent,
        PeekedMessage,
        Producer,
        Reader,
        Receipt,
        Receipts,
        ReceivedBatch,
        Redriven,
        Reply,
        Schemas,
        Stager,
        TopicRows,
        connect,
        connect_blocking,
    )
    from .model.policies import BacklogAction, Policies

__all__ = [
    "AlreadyExists",
    "App",
    "BacklogAction",
    "Backoff",
    "Binding",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDeadLetters",
    "BlockingProducer",
    "BlockingReader",
    "BlockingSchemas",
    "BlockingStager",
    "Client",
    "ClientMetrics",
    "Compatibility",
    "Conflict",
    "Consumer",
    "Corrupt",
    "DanubeError",
    "DeadLetter",
    "DeadLetters",
    "Denied",
    "Depends",
    "FailurePolicy",
    "Framing",
    "Full",
    "Held",
    "Incompatibility",
    "Invalid",
    "Message",
    "NotFound",
    "NotOwner",
    "PartialFailure",
    "PartitionEvent",
    "PeekedMessage",
    "Poison",
    "Policies",
    "Producer",
    "Reader",
    "Receipt",
    "Receipts",
    "ReceivedBatch",
    "Redriven",
    "Refused",
    "RegisteredVersion",
    "Reject",
    "Reply",
    "RequestFailed",
    "Retries",
    "Retry",
    "SchemaDefinition",
    "SchemaFormat",
    "SchemaReference",
    "SchemaVersion",
    "Schemas",
    "Stager",
    "StaleEpoch",
    "SubjectDescription",
    "Tick",
    "TopicRows",
    "Unauthenticated",
    "Unavailable",
    "ValidationPolicy",
    "__version__",
    "connect",
    "connect_blocking",
    "fastapi",
    "testing",
]

_ELSEWHERE: Final = {
    **dict.fromkeys(["App", "Depends", "PartialFailure", "Reject", "Retries", "Retry", "Tick"], ".app"),
    **dict.fromkeys(["BacklogAction", "Policies"], ".model.policies"),
}
"""Where the names are that are loaded late and are not the client's."""


def __getattr__(name: str) -> object:
    """Import the client, the app, policies, or the broker for tests, when one of its names is used first."""
    if name in ("testing", "fastapi"):
        return import_module(f".{name}", __name__)
    if name in __all__:
        value: object = getattr(import_module(_ELSEWHERE.get(name, ".client"), __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
