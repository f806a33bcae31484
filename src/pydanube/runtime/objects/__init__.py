"""Object stores behind one small interface, opened by URL."""

from .opening import open_store as open_store
from .prefixed import Prefixed as Prefixed
from .store import Buffer as Buffer
from .store import Capabilities as Capabilities
from .store import ObjectInfo as ObjectInfo
from .store import ObjectStore as ObjectStore
from .store import check_key as check_key
