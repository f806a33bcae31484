"""WHAT CAN BE ASKED. One class for each operation of a broker, whoever asks: a client, another broker, REST.

Lives here      the fields of each operation, its answer, who may ask, who else is asked, its REST route
May import      model
Flows through   a listener makes an operation of bytes or of an HTTP request; `broker.handlers` carries it out
Never           how anything is carried out; how it looks as bytes

operation       what an operation is
access          roles, bindings, API keys, quotas
brokers         brokers and their cluster
namespaces      namespaces, and the policies of namespaces and topics
paging          the fields of lists that come in pages
schemas         the schema registry, and the schemas of topics
staging         staged writes
storage         object storage
topics          topics and what is done to their partitions
subscriptions   subscriptions, their positions, their backlogs
dead_letters    dead letters, and sending them back
"""

from .operation import (
    CALL_SECONDS,
    CHANGE_SECONDS,
    AnswerT,
    Divisible,
    DivisibleT,
    Done,
    EachOwner,
    Operation,
    Request,
    Rest,
    TheOwner,
    answer_of,
    rests_of,
)

__all__ = [
    "CALL_SECONDS",
    "CHANGE_SECONDS",
    "AnswerT",
    "Divisible",
    "DivisibleT",
    "Done",
    "EachOwner",
    "Operation",
    "Request",
    "Rest",
    "TheOwner",
    "answer_of",
    "rests_of",
]
