"""Policies as values: what is inherited, what is changed, what is refused."""

from __future__ import annotations

import pytest

from pydanube.model.errors import Invalid
from pydanube.model.policies import DEFAULTS, FIELDS, BacklogAction, Policies


def test_what_a_topic_does_not_set_is_its_namespaces_and_then_the_default() -> None:
    namespace = Policies(ttl_s=60, producers_max=5).over(DEFAULTS)
    topic = Policies(ttl_s=30).over(namespace)
    assert (topic.ttl_s, topic.producers_max, topic.retention_s) == (30, 5, DEFAULTS.retention_s)


def test_zero_is_a_value_and_not_inherited() -> None:
    assert Policies(ttl_s=0).over(Policies(ttl_s=60)).ttl_s == 0


def test_a_change_to_none_inherits_again_and_leaves_the_rest() -> None:
    changed = Policies(ttl_s=60, producers_max=5).changed({"ttl_s": None})
    assert changed == Policies(producers_max=5)


def test_a_backlog_action_that_arrives_as_a_number_is_the_action() -> None:
    assert Policies().changed({"backlog_action": 1}).backlog_action is BacklogAction.EVICT
    with pytest.raises(Invalid, match="backlog action 7"):
        Policies().changed({"backlog_action": 7})


@pytest.mark.parametrize("name", FIELDS)
def test_a_number_that_makes_no_sense_is_refused_by_name(name: str) -> None:
    least = -1 if name.startswith("retention_") else 0
    for wrong in (least - 1, 2**53):
        with pytest.raises(Invalid, match=name if name != "backlog_action" else "backlog"):
            Policies().changed({name: wrong})


def test_a_segment_has_a_size_that_can_be_made_or_the_brokers() -> None:
    for size in (0, 64 * 1024, 2**29):
        assert Policies().changed({"segment_bytes": size}).segment_bytes == size
    for size in (1, 64 * 1024 - 1, 2**29 + 1):
        with pytest.raises(Invalid, match="segment_bytes"):
            Policies().changed({"segment_bytes": size})


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="'colour' is unknown"):
        Policies().changed({"colour": 3})
