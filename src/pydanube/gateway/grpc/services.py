"""Which services there are, and on which of the two listeners.

A service that has no class here is in the schema all the same: its calls get UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pydanube.broker import Broker

from .admin_cluster import BrokerAdmin, ClusterAdmin, NamespaceAdmin
from .admin_security import SecurityAdmin
from .admin_topics import TopicAdmin
from .consuming import ConsumerService
from .discovery import Discovery, HealthCheck
from .producing import ProducerService
from .resources import ListenerResources
from .schema_registry import SchemaRegistry
from .storage import StorageService


class Service(NamedTuple):
    """One service: its full name, the class that serves it, its listeners.

    The class is called with the broker and a ListenerResources. Services of both listeners share one object. It may
    have a method `drain()`, which is called when the broker begins to shut down and must end its streams with
    UNAVAILABLE.
    """

    name: str
    make: Callable[[Broker, ListenerResources], Any]
    data: bool = False
    admin: bool = False


SERVICES: Final[tuple[Service, ...]] = (
    Service("danube.ProducerService", ProducerService, data=True),
    Service("danube.ConsumerService", ConsumerService, data=True),
    Service("danube.Discovery", Discovery, data=True),
    Service("danube.HealthCheck", HealthCheck, data=True),
    Service("danube.StorageService", StorageService, data=True),
    Service("danube_schema.SchemaRegistry", SchemaRegistry, data=True, admin=True),
    Service("danube_admin.BrokerAdmin", BrokerAdmin, admin=True),
    Service("danube_admin.ClusterAdmin", ClusterAdmin, admin=True),
    Service("danube_admin.NamespaceAdmin", NamespaceAdmin, admin=True),
    Service("danube_admin.TopicAdmin", TopicAdmin, admin=True),
    Service("danube_admin.SecurityAdmin", SecurityAdmin, admin=True),
)
