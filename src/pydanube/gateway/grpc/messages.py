"""The messages and services of the Danube gRPC API, loaded from descriptor sets into one private pool.

No generated module is imported: those register in the pool of the process, where they would clash with an official
Danube client, and work only with the release of protobuf that they were generated for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydanube.runtime.descriptor_sets import ProtobufSchema

_HERE: Final = Path(__file__).parent
_FILES: Final = ("danube_api", "schema_registry", "danube_admin", "health", "reflection_v1", "reflection_v1alpha")

SCHEMA: Final = ProtobufSchema.load(*(_HERE / f"{name}.binpb" for name in _FILES))

API: Final = SCHEMA.messages("danube")
"""Message classes by name: `API["StreamMessage"]`. Enums are numbers; those that are nested have their
names in the class around them: `API["ConsumerRequest"].Shared`."""
REGISTRY: Final = SCHEMA.messages("danube_schema")
ADMIN: Final = SCHEMA.messages("danube_admin")
HEALTH: Final = SCHEMA.messages("grpc.health.v1")
