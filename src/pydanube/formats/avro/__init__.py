"""The format avro.

schema          parsing a definition, checking, reading and writing payloads
types           the types of a definition, defaults, how types of two versions match
check           whether bytes are a datum of a type
read            reading what was written with another schema
compatibility   whether one schema reads what another wrote
arrow           the Arrow types
columns         decodes payloads to columns, with `walk`, `primitives` and `rows`; `encoding` encodes columns
"""
