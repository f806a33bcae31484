"""The format avro.

schema          parsing a definition, checking, reading and writing payloads
types           the types of a definition, defaults, how types of two versions match
read            reads single payloads, also those that were written with another schema, and checks them on the way
check           whether payloads are valid: walks many of them by columns
compatibility   whether one schema reads what another wrote
arrow           the Arrow types; `columns` makes columns of what a walk has read, `encoding` encodes columns
"""
