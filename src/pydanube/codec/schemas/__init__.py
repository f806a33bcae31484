"""Schema formats: parsing definitions, canonical forms and fingerprints, checking and decoding payloads.

`parse_schema` makes a `ParsedSchema` of a definition; each format has a module of its own, which is imported only when
it is used, because its libraries are the extra `schemas`.

`columns` makes Arrow columns of payloads; it needs pyarrow, so it is imported where it is used.
"""

from .parsed import InvalidRow, ParsedSchema, parse_schema

__all__ = ["InvalidRow", "ParsedSchema", "parse_schema"]
