"""The segment format: an object that holds ranges of partitions, with the batches unchanged.

`layout` has the drawing of the object, its header and its trailer; `footer` is the index of sections and blocks;
`builder` makes an object from batches; `split` splits bytes that were read into checked batches.
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
