"""Typed reading: payloads become the columns of the topics' schema (option `decode`).

planning        driver: the version that a query reads with, its columns, and the definitions that tasks get
typed_read      what the driver hands to tasks
typed_rows      tasks: record batches of messages become record batches of typed columns;
                keeps definitions that were registered after the query started, and decoders, per process
"""
