"""The format protobuf.

schema          a definition in a descriptor pool of its own; checking, reading and writing payloads
proto_files     the files of a definition: loading, checking, the canonical form
proto_text      translates `.proto` text
compatibility   whether one definition reads what another wrote
arrow           the Arrow types; `columns` decodes payloads to columns, `encoding` encodes
"""
