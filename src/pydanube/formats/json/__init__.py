"""The format json: JSON Schema.

schema          parsing a definition, checking and reading payloads
documents       the documents of a definition, and the references between them
compatibility   whether one schema allows what another allows
arrow           the Arrow types; `columns` decodes payloads to columns, `encoding` encodes
"""
