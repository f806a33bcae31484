"""The batch: what producers build, brokers stamp and store, and consumers and Spark read, all of it the same bytes.

`layout` and `header` draw the bytes.
"""

from .header import BatchHeader as BatchHeader
from .header import ByteBuffer as ByteBuffer
from .header import Codec as Codec
from .header import read_header as read_header
from .header import stamp as stamp
from .layout import HEADER_BYTES as HEADER_BYTES
