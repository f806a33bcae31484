"""Who may do what."""

from __future__ import annotations

import pytest

from pydanube.core.access import ANONYMOUS, BROKER, Action, AllowAll, Authorizer, Principal
from pydanube.model.errors import Denied


class OnlyReaders:
    """An example of an authorizer: every principal may describe, and none may change anything."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if action not in (Action.READ, Action.DESCRIBE):
            raise Denied(f"{principal} may not {action} {resource}")


@pytest.mark.parametrize("action", Action)
def test_without_rules_everybody_may_do_everything(action: Action) -> None:
    authorizer: Authorizer = AllowAll()
    authorizer.check(ANONYMOUS, action, BROKER)
    authorizer.check(Principal("billing"), action, "/default/orders")


def test_a_refusal_names_who_what_and_where() -> None:
    authorizer: Authorizer = OnlyReaders()
    authorizer.check(ANONYMOUS, Action.READ, "/default/orders")
    with pytest.raises(Denied, match="billing may not produce /default/orders"):
        authorizer.check(Principal("billing"), Action.PRODUCE, "/default/orders")


def test_principals_are_values() -> None:
    assert Principal("a") == Principal("a") != Principal("b")
    assert {Principal("a"): 1}[Principal("a")] == 1
    assert str(ANONYMOUS) == "anonymous"


def test_the_words_for_actions_are_the_ones_rules_are_written_in() -> None:
    words = [str(action) for action in Action]
    assert words == ["produce", "consume", "read", "describe", "create", "delete", "administer"]
