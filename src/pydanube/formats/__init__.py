"""PAYLOADS. What the payloads of a topic look like: schemas of each format, and the payloads that they describe.

Lives here      a package for each format that needs a library (`avro`, `json`, `protobuf`), imported when it is used;
                `all_formats` (`parse_schema`); compatibility of versions; payloads as Arrow columns, and back
May import      model, codec
Flows through   a definition becomes a `ParsedSchema`, which checks payloads in the broker and reads them in clients
Never           I/O; trust in a definition or a payload: time and memory are bounded whatever their bytes are

`columns` and `encoding` need pyarrow, so they are imported where they are used.
"""

from .all_formats import InvalidRow, ParsedSchema, parse_schema

__all__ = ["InvalidRow", "ParsedSchema", "parse_schema"]
