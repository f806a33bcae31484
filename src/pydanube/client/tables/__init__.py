"""Topics as tables: the rows of stored batches as Arrow record batches, with typed columns where a topic has a schema.

columns                 the names of the columns of messages
arrow_rows              makes record batches of stored batches
definitions             the definitions that payloads are decoded with, and how the payloads of a topic are written
payloads                decodes payloads to the columns of a schema

Needs pyarrow, except for `columns`. The Spark data source is made of the same parts.
"""
