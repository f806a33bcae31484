"""What nearly every part of a broker needs, in one value that is handed to them."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.broker.cluster.gathering import Gathering
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import Authorizer
from pydanube.metadata.store import MetadataStore
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The surroundings of one broker."""

    registry: Registry
    store: MetadataStore
    writer: LogWriter
    authorizer: Authorizer
    clock: Clock
    tasks: Tasks
    cluster: ClusterParts
    gathering: Gathering
    metrics: BrokerMetrics
    settings: Sections
