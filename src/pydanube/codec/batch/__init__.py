"""The batch: what producers build, brokers stamp and store, and consumers and Spark read; all of it the same bytes.

header, layout   the bytes: the 128 bytes of header, and where each column lies
message_columns  checks what a program hands over and turns it into columns
assemble         writes checked columns as a batch
encode           the entry to these two for lists of values, `pack` the one for columns in Arrow's layout
compression      of payloads, keys and attributes
verify, hashes   check batches that come from another process
column_views     reads columns in place
batch            `Batch`, which every other package works with, and `BatchMessage`, one row of it
gather, join     make a batch for a delivery of some rows of a batch, or of several batches
arrow            shows a batch as an Arrow record batch
"""

from .batch import Batch as Batch
from .batch import BatchMessage as BatchMessage
from .encode import BatchBuilder as BatchBuilder
from .encode import encode as encode
from .encode import encode_rows_from as encode_rows_from
from .header import BatchHeader as BatchHeader
from .header import ByteBuffer as ByteBuffer
from .header import Codec as Codec
from .header import read_header as read_header
from .header import stamp as stamp
from .header import with_producer as with_producer
from .layout import HEADER_BYTES as HEADER_BYTES
