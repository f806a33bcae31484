"""The segment: an object of the store that holds sealed ranges of partitions, their batches unchanged.

`layout` draws the object and reads both its ends, `footer` says what lies where and is asked for byte ranges, `builder`
makes the pieces of an object out of batches, and `split` cuts bytes read back into batches that were checked.
"""

from .builder import SegmentBuilder as SegmentBuilder
from .footer import Block as Block
from .footer import SegmentFooter as SegmentFooter
from .footer import SegmentSection as SegmentSection
from .footer import decode_footer as decode_footer
from .layout import END_BYTES as END_BYTES
from .layout import HEADER_BYTES as HEADER_BYTES
from .layout import TRAILER_BYTES as TRAILER_BYTES
from .layout import ByteBuffer as ByteBuffer
from .layout import Trailer as Trailer
from .layout import check_header as check_header
from .layout import read_trailer as read_trailer
from .split import split as split
