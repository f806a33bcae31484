"""Failure policies as values: what may be left out, what may be said as text, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydanube import Backoff, FailurePolicy, Invalid, Poison


def test_words_do_as_well_as_values() -> None:
    given: dict[str, Any] = {"poison": "drop", "backoff": "fixed"}
    assert FailurePolicy(**given) == FailurePolicy(poison=Poison.DROP, backoff=Backoff.FIXED)
    dead: dict[str, Any] = {"poison": "dead-letter"}
    assert FailurePolicy(**dead, dead_letter_topic="/default/dlq").poison is Poison.DEAD_LETTER


@pytest.mark.parametrize("wrong", [{"poison": "eat"}, {"poison": 7}, {"backoff": "slowly"}, {"backoff": None}])
def test_other_words_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="unknown: use"):
        FailurePolicy(**wrong)


def test_a_dead_letter_topic_says_what_becomes_of_poison_unless_something_else_is_said() -> None:
    assert FailurePolicy().poison is Poison.BLOCK
    assert FailurePolicy(dead_letter_topic="/default/dlq").poison is Poison.DEAD_LETTER
    assert FailurePolicy(dead_letter_topic="/default/dlq", poison=Poison.BLOCK).poison is Poison.BLOCK


@pytest.mark.parametrize("topic", ["", "/default/dlq"])
@pytest.mark.parametrize("poison", [Poison.BLOCK, Poison.DROP])
def test_what_was_said_travels_as_it_was_said(poison: Poison, topic: str) -> None:
    policy = FailurePolicy(poison=poison, dead_letter_topic=topic)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=FailurePolicy) == policy


def test_what_is_missing_on_the_wire_is_what_is_missing_here() -> None:
    sent = msgspec.msgpack.encode({"dead_letter_topic": "/default/dlq"})
    assert msgspec.msgpack.decode(sent, type=FailurePolicy) == FailurePolicy(dead_letter_topic="/default/dlq")
