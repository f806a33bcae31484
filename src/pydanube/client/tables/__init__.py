"""Topics as tables: the rows of stored batches as Arrow record batches, with typed columns where a topic has a schema.

topic_batches           reads a topic batch by batch
topic_rows              the rows of a topic as one table, for other libraries
planning                which offsets are read, from where, and what is made of them
read_types              the names of the columns of messages, and the types of arguments
table_columns           the columns of one read
conditions              `where`
typed_payloads          the schemas of one read
arrow_rows              makes record batches of stored batches
definitions             the definitions that payloads are decoded with, and how the payloads of a topic are written
payloads                decodes payloads to the columns of a schema

Needs pyarrow, except for `read_types`. The Spark data source is made of the same parts.
"""
