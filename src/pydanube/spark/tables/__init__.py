"""Delta and Iceberg tables: sinks for plain pip installs, and landing topics in tables exactly once.

sources                 the classes that Spark looks up: format("danube-delta") and format("danube-iceberg")
options                 the options of a table, parsed and checked
table_writer            batch and stream writers, as Spark calls them: tasks write files, the driver commits them
table_formats           what a table format can do; opens the one that the options name
delta, iceberg          the two formats: create, check, evolve and commit
table_schema            compares the columns of rows with those of a table
data_files              Parquet files: their names, writing them in a task, their statistics
stores                  the file system that a table's files are in
landing                 starts a stream that lands a topic in a table
landed                  what a table records about its landings: topics, offsets, queries
lag                     finds tables in directories, and how far their landings are behind
orphans                 finds and removes files that were never committed

The extra `lakehouse` installs deltalake and pyiceberg; they are imported when a table is used.
"""
