"""SQL over topics, as `danube sql` runs it: a query names topics as tables, in backticks.

query           finds the topics of a query, and what is wrong with its syntax, without Spark
topic_views     makes a view of each topic, typed where it is bound to a subject, and runs the query
"""
