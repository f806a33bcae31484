"""A limit that many share: what one user leaves for the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.runtime.budget import Budget

USERS = ["user:eve", "user:bob", "user:ann"]


def fill(budget: Budget, *users: str) -> int:
    """Take one after the other, and return how many there were."""
    taken = 0
    while budget.take(1, *users):
        taken += 1
    return taken


def test_each_user_leaves_as_much_as_it_has() -> None:
    budget = Budget(800)
    assert [fill(budget, one) for one in USERS] == [400, 200, 100]
    assert budget.over_share(1, "user:eve") == "user:eve"
    assert not budget.over_share(1, "user:new")


def test_users_that_are_not_told_apart_share_all_of_it() -> None:
    budget = Budget(800)
    assert fill(budget) == 800
    assert not budget.take(1, "user:eve")


def test_a_principal_leaves_some_of_what_its_namespace_may_have() -> None:
    budget = Budget(900)
    assert fill(budget, "/greedy", "user:eve") == 300
    assert fill(budget, "/greedy", "user:bob") == 100
    assert fill(budget, "/other", "user:ann") > 100
    for number in range(20):
        fill(budget, "/greedy", f"user:{number}")
    assert budget.free >= 100
    assert fill(budget, "/new", "user:new") > 30


def test_what_is_given_back_may_be_taken_again() -> None:
    budget = Budget(900)
    fill(budget, "/greedy", "user:eve")
    budget.give_back(300, "/greedy", "user:eve")
    assert (budget.used, budget.used_by("/greedy"), budget.used_by("user:eve")) == (0, 0, 0)
    assert fill(budget, "/greedy", "user:eve") == 300


@given(st.lists(st.tuples(st.sampled_from(USERS), st.integers(1, 60), st.booleans())))
def test_a_budget_counts_what_was_taken(steps: list[tuple[str, int, bool]]) -> None:
    budget, held = Budget(100), dict.fromkeys(USERS, 0)
    for user, size, is_taking in steps:
        if is_taking:
            before = held[user]
            if budget.take(size, user):
                held[user] = before + size
        else:
            budget.give_back(taken := min(size, held[user]), user)
            held[user] -= taken
        assert budget.used == sum(held.values()) <= budget.limit
        assert all(budget.used_by(one) == held[one] for one in USERS)
