"""Object stores behind one small interface, opened by URL."""

from .object_store import Buffer as Buffer
from .object_store import Capabilities as Capabilities
from .object_store import ObjectInfo as ObjectInfo
from .object_store import ObjectStore as ObjectStore
from .object_store import check_key as check_key
from .opening import open_store as open_store
from .prefixed import Prefixed as Prefixed
