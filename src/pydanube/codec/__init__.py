"""BYTES. Everything stored or sent, drawn byte by byte: batch, log record, state, segment, slice, stage, frames.

Lives here      encoders, decoders and the checks that make bytes from outside safe to use
May import      model, operations
Flows through   a batch is encoded once, by its producer; after that it is only read, stamped and passed on
Never           I/O, clocks, policy; a Python loop per message with struct calls per field
"""
