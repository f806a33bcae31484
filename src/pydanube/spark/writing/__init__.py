"""Writing topics exactly once: tasks stage encoded batches, and the driver commits them.

staged_writer           batch and stream writers, as Spark calls them: tasks stage, the driver commits
row_packing             makes encoded batches of rows
frame_columns           checks the columns of a data frame
row_encoding            encodes the columns of a data frame by a schema
"""
