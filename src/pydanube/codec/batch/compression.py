"""Compresses and decompresses the variable section of a batch.

The plain length is known from the header and checked before anything is decompressed, so hostile bytes cannot make this
process use more memory than the largest batch: never more output than the header states is produced, and a Zstandard
frame whose window is larger than the largest batch is refused. Zstandard contexts are kept per thread: they are
expensive to make and not safe to share.
"""

from __future__ import annotations

import threading
from functools import cached_property

import lz4.block
import zstandard

from pydanube.model.errors import Corrupt
from pydanube.model.limits import BATCH_BYTES_MAX

from .header import Codec


class _Contexts(threading.local):
    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor()

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(max_window_size=BATCH_BYTES_MAX)


_contexts = _Contexts()


def compress(codec: Codec, plain: bytes) -> bytes:
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(plain, store_size=False)
        return packed
    assert codec is Codec.ZSTD
    return _contexts.compressor.compress(plain)


def decompress(codec: Codec, packed: memoryview, plain_length: int) -> bytes:
    """Return exactly `plain_length` bytes. Raises Corrupt if `packed` decompresses to anything else."""
    assert 0 < plain_length <= BATCH_BYTES_MAX
    plain = _unpack_lz4(packed, plain_length) if codec is Codec.LZ4 else _unpack_zstd(packed, plain_length)
    if len(plain) != plain_length:
        raise Corrupt(f"{codec} data unpacks to {len(plain)} bytes instead of {plain_length}")
    return plain


def _unpack_lz4(packed: memoryview, plain_length: int) -> bytes:
    try:
        plain: bytes = lz4.block.decompress(packed, uncompressed_size=plain_length)
    except lz4.block.LZ4BlockError as error:
        raise Corrupt(f"lz4 data of the batch cannot be unpacked: {error}") from None
    return plain


def _unpack_zstd(packed: memoryview, plain_length: int) -> bytes:
    try:
        # zstandard allocates the size that a frame states, whatever max_output_size says: check that size first.
        named = zstandard.frame_content_size(packed)
        if named not in (-1, plain_length):
            raise Corrupt(f"zstd data of the batch claims {named} bytes instead of {plain_length}")
        return _contexts.decompressor.decompress(packed, max_output_size=plain_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"zstd data of the batch cannot be unpacked: {error}") from None
