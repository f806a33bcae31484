"""What operations declare, and values that are text in every protocol."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest

from pydanube.broker.handlers import HANDLERS
from pydanube.codec.native import requests
from pydanube.model.errors import Invalid
from pydanube.model.quotas import QuotaSubject
from pydanube.model.security import BoundSubject, ResourcePattern, Role
from pydanube.operations import Done, access, answer_of, rests_of

OPERATIONS = pytest.mark.parametrize("kind", HANDLERS, ids=lambda one: one.__name__)


@OPERATIONS
def test_rest_answers_with_the_answer_or_says_why_there_is_no_rest(kind):
    for rest in rests_of(kind):
        assert rest.then is not None or type(rest.answer or Done()) is answer_of(kind)
    assert rests_of(kind) or len(kind.rest) > 20


@OPERATIONS
def test_an_operation_says_in_words_what_it_does(kind):
    summary = kind.__doc__.partition("\n")[0]
    assert summary.endswith(".") and len(summary) < 120


def test_a_change_that_compares_or_makes_something_is_sent_once():
    assert access.GetRole(name="a").may_repeat
    assert not access.CreateRole(name="a", actions=[]).may_repeat
    assert access.ChangeRole(name="a", actions=[]).may_repeat
    assert not access.ChangeRole(name="a", actions=[], expected="1").may_repeat
    assert answer_of(access.ChangeRole) is Role


WRITTEN = [QuotaSubject("user", "alice"), BoundSubject("group", "ops"), ResourcePattern("/shop/orders-*")]


@pytest.mark.parametrize("value", WRITTEN, ids=str)
def test_a_written_value_is_a_value(value):
    kind = type(value)
    assert kind.parse(str(value)) == value and hash(kind.parse(str(value))) == hash(value)
    assert copy.deepcopy(value) == value == pickle.loads(pickle.dumps(value))
    assert value < kind.parse(f"{value}s")
    with pytest.raises(AttributeError):
        setattr(value, kind.__slots__[0], "other")
    assert repr(value).startswith(f"{kind.__name__}(")


def test_what_a_text_of_the_wire_says_wrong_is_told_in_the_words_of_the_model():
    head = msgspec.msgpack.encode({"op": "access.quota", "subject": "planet:mars"})
    with pytest.raises(Invalid, match="use user:NAME, service_account:NAME"):
        requests.decode_request(memoryview(head))
    for wrong in (7, None, ["user:alice"], {"type": "user"}, b"user:alice"):
        head = msgspec.msgpack.encode({"op": "access.quota", "subject": wrong})
        with pytest.raises(Invalid):
            requests.decode_request(memoryview(head))


def test_a_position_off_the_wire_has_an_offset_that_a_message_can_have():
    head = {"op": "subscription.seek", "topic": "/shop/orders", "subscription": "billing"}
    for offset in (-1, 2**63):
        asked = msgspec.msgpack.encode({**head, "position": {"kind": "offset", "value": offset}})
        with pytest.raises(Invalid, match="negative or too large"):
            requests.decode_request(memoryview(asked))
