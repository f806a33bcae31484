"""Slices of the log in the object store: what makes an ack of the level `stored` survive its broker.

slice_writer    puts the slices of this broker's incarnation, in order, and tells what counts
sealing         ends the sequence of an incarnation that is over, so that it can never ack again
slice_reader    reads the slices that count of a sealed sequence
collecting      deletes the slices that no partition needs any more
"""

from .collecting import SliceCollector
from .sealing import check_store, probe_store, seal
from .slice_reader import SliceReader
from .slice_writer import SliceWriter

__all__ = ["SliceCollector", "SliceReader", "SliceWriter", "check_store", "probe_store", "seal"]
