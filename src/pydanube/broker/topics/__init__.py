"""Topics: their list, their policies, and what is changed or dropped of them, by command or by age.

listing                 lists of topics, in pages
policies                limits and lifetimes of topics and namespaces
topics                  create, describe, grow, unload, truncate, another ack level
ack_levels              which ack level a topic gets
namespaces              create, list and delete namespaces
stored_messages         reads messages for people who look at them
expiration              the task that checks every topic in turn
retention               drops acked messages that are too old or too many
time_to_live            acks messages that no consumer acked in time
topic_deletion          deletes a topic with everything in it
unused                  for how long topics and subscriptions are unused, also at other brokers
"""
