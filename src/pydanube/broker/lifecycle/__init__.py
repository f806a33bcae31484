"""Retention, time to live and eviction of messages, and the deletion of topics, by command or because they are
unused.

expiration              the task that checks every topic in turn
retention               drops acked messages that are too old or too many
time_to_live            acks messages that no consumer acked in time
truncation              deletes what lies before given offsets, by command
topic_deletion          deletes a topic with everything in it
unused                  for how long topics and subscriptions are unused, also at other brokers
"""
