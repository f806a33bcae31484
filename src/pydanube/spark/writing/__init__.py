"""Writing topics exactly once: tasks stage encoded batches, and the driver commits them.

writer                  batch and stream writers, as Spark calls them: tasks stage, the driver commits
packing                 makes encoded batches of rows
columns                 checks the columns of a data frame
row_encoding            encodes the columns of a data frame by a schema
"""
