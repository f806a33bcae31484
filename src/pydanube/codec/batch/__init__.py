"""The batch: what producers build, brokers stamp and store, and consumers and Spark read; all of it the same bytes.

`layout` and `header` draw the bytes. `intake` checks what programs hand over, `assemble` writes it, `encode` is the
door to both, and `pack` the one for columns that lie in Arrow's layout already. `verify` (with `hashes`) checks foreign
bytes, `columns` reads them in place, `batch` is how everybody else holds them, and one row of it is a `message`; `peek`
takes single fields. `gather`, `join`, `resign`, `rest` and `arrow` are what can be made of batches.
"""

from .batch import Batch as Batch
from .encode import BatchBuilder as BatchBuilder
from .encode import encode as encode
from .header import BatchHeader as BatchHeader
from .header import ByteBuffer as ByteBuffer
from .header import Codec as Codec
from .header import read_header as read_header
from .header import stamp as stamp
from .layout import HEADER_BYTES as HEADER_BYTES
from .message import BatchMessage as BatchMessage
from .resign import resigned as resigned
from .rest import rest_of as rest_of
