"""The error tree as statuses of gRPC, and the schema that is loaded."""

from __future__ import annotations

from grpc import StatusCode

from pydanube.gateway.grpc.errors import STATUS, details_of, status_of
from pydanube.gateway.grpc.messages import ADMIN, API, REGISTRY, SCHEMA
from pydanube.model.errors import DanubeError, NotOwner, StaleEpoch, Unavailable, tree


def test_every_class_of_the_error_tree_has_a_status_of_its_own_entry() -> None:
    ours = [kind for kind in tree() if kind.__module__.startswith("pydanube.model")]
    assert set(ours) == set(STATUS)


def test_what_looking_up_again_cures_is_unavailable_which_clients_repeat() -> None:
    for kind in (NotOwner, StaleEpoch, Unavailable):
        assert status_of(kind("moved")) is StatusCode.UNAVAILABLE


def test_a_class_without_an_entry_has_the_status_of_its_nearest_base() -> None:
    class Busy(Unavailable):
        pass

    class Odd(DanubeError):
        pass

    assert status_of(Busy("later")) is StatusCode.UNAVAILABLE
    assert status_of(Odd("what")) is StatusCode.INTERNAL


def test_long_details_are_cut_to_what_clients_accept() -> None:
    assert details_of("short") == "short"
    assert len(details_of("x" * 100_000)) < 1_100


def test_the_messages_of_all_three_packages_are_in_one_private_pool() -> None:
    assert API["StreamMessage"].DESCRIPTOR.file.pool is ADMIN["TopicInfo"].DESCRIPTOR.file.pool
    assert REGISTRY["RegisterSchemaRequest"].DESCRIPTOR.full_name == "danube_schema.RegisterSchemaRequest"
    assert set(SCHEMA.methods("danube.ConsumerService")) == {"Subscribe", "ReceiveMessages", "Ack", "Nack"}


def test_a_message_keeps_whether_its_routing_key_is_there() -> None:
    message = API["StreamMessage"]
    assert not message.FromString(message().SerializeToString()).HasField("routing_key")
    assert message.FromString(message(routing_key="").SerializeToString()).HasField("routing_key")


def test_a_message_has_the_bytes_that_existing_clients_send() -> None:
    sent = API["StreamMessage"](
        request_id=3,
        msg_id=API["MsgID"](producer_id=7, topic_name="/default/t", broker_addr="b", topic_offset=9),
        payload=b"hello",
        publish_time=5,
        producer_name="p",
        attributes={"a": "1"},
        schema_id=2,
        schema_version=1,
        routing_key="k",
    )
    assert sent.SerializeToString().hex() == (
        "08031213080712 0a2f64656661756c742f741a01622809".replace(" ", "")
        + "1a0568656c6c6f2005 2a0170 3a060a0161120131 4002 4801 52016b".replace(" ", "")
    )
