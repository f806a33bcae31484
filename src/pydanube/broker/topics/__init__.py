"""Topics: their list, their policies, and what is changed or dropped of them, by command or by age.

listing                 lists of topics, in pages
policies                limits and lifetimes of topics and namespaces
changes                 grow, unload, truncate, another ack level
expiration              the task that checks every topic in turn
retention               drops acked messages that are too old or too many
time_to_live            acks messages that no consumer acked in time
topic_deletion          deletes a topic with everything in it
unused                  for how long topics and subscriptions are unused, also at other brokers
"""
