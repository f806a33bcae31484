"""Roles and bindings: what is allowed, what is denied, and when a change is in force."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.core.access import Action, Principal
from pydanube.core.access_rules import BUILT_IN_ROLES, AccessRules, parse_actions
from pydanube.model.errors import Denied, Invalid
from pydanube.model.security import Binding, BoundSubject, ResourcePattern

ALICE = Principal("alice", groups=("ops",))
EVERYTHING = ["/", "/default", "/default/orders", "/default/orders/billing", "/other/orders", "schema:orders"]


def rules(*bindings: tuple[str, str, str], super_users: tuple[str, ...] = ()) -> AccessRules:
    """Make rules of bindings, each a subject, a role and a resource."""
    made = AccessRules(super_users)
    for number, (subject, role, resource) in enumerate(bindings):
        bind(made, str(number), subject, role, resource)
    return made


def bind(made: AccessRules, binding_id: str, subject: str, role: str, resource: str) -> None:
    made.set_binding(
        binding_id, Binding(binding_id, BoundSubject.parse(subject), (role,), ResourcePattern.parse(resource))
    )


def allowed(made: AccessRules, principal: Principal, resource: str) -> set[str]:
    return {one.value for one in Action if made.allows(principal, one, resource)}


def test_without_a_binding_everything_is_denied_by_name() -> None:
    with pytest.raises(Denied, match="user:alice may not produce /default/orders: ask for a role that may"):
        rules().check(ALICE, Action.PRODUCE, "/default/orders")
    with pytest.raises(Denied, match="user:alice may not administer the cluster"):
        rules().check(ALICE, Action.ADMINISTER, "/")


@pytest.mark.parametrize(
    ("resource", "covered"),
    [
        ("/", EVERYTHING),
        ("/default", ["/default", "/default/orders", "/default/orders/billing"]),
        ("/default/orders", ["/default/orders", "/default/orders/billing"]),
        ("/default/ord*", ["/default/orders", "/default/orders/billing"]),
        ("/default/order?", ["/default/orders", "/default/orders/billing"]),
        ("/default/*/billing", ["/default/orders/billing"]),
        ("/*/orders", ["/default/orders", "/default/orders/billing", "/other/orders"]),
        ("schema:ord*", ["schema:orders"]),
    ],
)
def test_a_binding_covers_what_it_names_and_everything_below(resource: str, covered: list[str]) -> None:
    made = rules(("user:alice", "producer", resource))
    assert [one for one in EVERYTHING if made.allows(ALICE, Action.PRODUCE, one)] == covered


def test_names_are_never_compared_by_prefix() -> None:
    made = rules(("user:alice", "producer", "/default/orders"))
    assert not made.allows(ALICE, Action.PRODUCE, "/default/orders-dlq")
    assert not made.allows(ALICE, Action.PRODUCE, "/defaultx/orders")


@pytest.mark.parametrize("role", BUILT_IN_ROLES)
def test_each_built_in_role_allows_its_actions_and_no_others(role: str) -> None:
    made = rules(("user:alice", role, "/default"))
    assert allowed(made, ALICE, "/default/orders") == {one.value for one in BUILT_IN_ROLES[role]}


def test_bindings_of_a_principal_and_its_groups_add_up() -> None:
    made = rules(("user:alice", "producer", "/default"), ("group:ops", "reader", "/default/orders"))
    assert allowed(made, ALICE, "/default/orders") == {"produce", "read", "describe"}
    assert allowed(made, ALICE, "/default/other") == {"produce", "describe"}
    assert allowed(made, Principal("alice", "service_account"), "/default/orders") == set()
    assert allowed(made, Principal("bob", groups=("ops",)), "/default/orders") == {"read", "describe"}


def test_who_may_use_a_subscription_may_describe_its_topic_and_no_other_subscription() -> None:
    made = rules(("user:alice", "consumer", "/default/orders/billing"))
    assert allowed(made, ALICE, "/default/orders/billing") == {"consume", "read", "describe"}
    assert allowed(made, ALICE, "/default/orders") == {"describe"}
    assert allowed(made, ALICE, "/default/orders/audit") == set()
    assert allowed(made, ALICE, "/default") == set()


def test_brokers_and_super_users_may_do_everything() -> None:
    made = rules(super_users=("user:root",))
    for one in EVERYTHING:
        assert made.allows(Principal("root"), Action.ADMINISTER, one)
        assert made.allows(Principal("b1", "broker"), Action.ADMINISTER, one)
        assert not made.allows(Principal("root", "service_account"), Action.DESCRIBE, one)


def test_a_change_is_in_force_at_the_next_question() -> None:
    made, changes = rules(("user:alice", "loader", "/default")), []
    made.on_changed = lambda: changes.append(made.allows(ALICE, Action.PRODUCE, "/default/orders"))
    assert not made.allows(ALICE, Action.PRODUCE, "/default/orders"), "an unknown role gives nothing"
    made.set_role("loader", [Action.PRODUCE])
    made.set_role("loader", [Action.READ])
    made.set_role("loader", [Action.PRODUCE, Action.CREATE])
    made.set_binding("0", None)
    assert changes == [True, False, True, False]


def test_unknown_actions_are_named_with_those_that_exist() -> None:
    assert parse_actions(["read", "read", "produce"]) == (Action.READ, Action.PRODUCE)
    with pytest.raises(Invalid, match="'write' is no action: use produce, consume, read, describe"):
        parse_actions(["read", "write"])


@pytest.mark.parametrize("text", ["", "default", "//", "/default/", "/a/b/c/d", "/a b", "schema:", "/*a*b*c*d*e", "/ä"])
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        ResourcePattern.parse(text)


WORDS = st.text("ab*?", min_size=1, max_size=4).filter(lambda one: one.count("*") < 2)
PATHS = st.lists(WORDS, min_size=1, max_size=3)
NAMES = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(PATHS, NAMES)
def test_patterns_cover_what_a_simple_comparison_says(pattern: list[str], names: list[str]) -> None:
    covers = len(names) >= len(pattern) and all(
        re.fullmatch(fnmatch.translate(one), name) for one, name in zip(pattern, names, strict=False)
    )
    made = rules(("user:alice", "producer", "/" + "/".join(pattern)))
    assert made.allows(ALICE, Action.PRODUCE, "/" + "/".join(names)) == covers


# -- patterns that cover patterns, and why something is allowed --------------------------------------------------------

_WORD = st.text("ab*?", min_size=1, max_size=4)
_PATTERNS = st.one_of(
    st.lists(_WORD, min_size=1, max_size=3).map(lambda words: "/" + "/".join(words)),
    _WORD.map(lambda word: f"schema:{word}"),
    st.just("/"),
).filter(lambda text: text.count("*") <= 4)
_NAMES = st.text("ab", max_size=3)


@given(_PATTERNS, _PATTERNS, st.lists(_NAMES, min_size=12, max_size=12), st.lists(st.sampled_from("ab"), min_size=12))
def test_a_pattern_that_covers_another_matches_all_that_the_other_matches(
    one: str, other: str, many: list[str], single: list[str]
) -> None:
    first, second = ResourcePattern.parse(one), ResourcePattern.parse(other)
    assert first.covers(first)
    if first.covers(second):
        some = "".join(many.pop() if c == "*" else single.pop() if c == "?" else c for c in other)
        if "//" not in some and not some.endswith("/"):
            assert re.fullmatch(first.expression(), some), some


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        ("/", "schema:*", True),
        ("/a", "/", False),
        ("/a", "/a/b*", True),
        ("/a", "/ab", False),
        ("/*", "/", False),
        ("/a/?", "/a/*", False),
        ("/a/*", "/a/?", True),
        ("/a/*", "/a/b/c*", True),
        ("/a/*", "/a", False),
        ("schema:?", "schema:*", False),
        ("schema:a*", "schema:ab?", True),
        ("schema:a", "schema:a/b", False),
    ],
)
def test_patterns_that_cover_others(one: str, other: str, covers: bool) -> None:
    assert ResourcePattern.parse(one).covers(ResourcePattern.parse(other)) is covers


def test_wildcards_do_not_make_the_comparison_with_a_long_name_slow() -> None:
    made = rules(("user:alice", "producer", "/default/*a*a*a*b"), ("user:alice", "producer", "schema:*a?*a*a*b"))
    began = time.process_time()
    for number in range(50):
        name = "a" * 190 + str(number)
        assert not allowed(made, ALICE, f"/default/{name}") and not allowed(made, ALICE, f"schema:{name}")
    assert time.process_time() - began < 1  # with backtracking a tenth of a second for each name


_SUBJECTS = st.sampled_from(["user:alice", "group:ops", "user:bob"])
_BINDINGS = st.lists(st.tuples(_SUBJECTS, st.sampled_from([*BUILT_IN_ROLES, "unknown"]), _PATTERNS), max_size=5)
_RESOURCES = st.lists(st.text("ab", min_size=1, max_size=2), max_size=3).map(lambda words: "/" + "/".join(words))


@pytest.mark.parametrize("pattern", ["/*", "/**", "/*/*", "/?", "/*/*/*"])
def test_all_namespaces_are_not_the_cluster(pattern: str) -> None:
    made = rules(("user:alice", "admin", pattern))
    assert made.allowed(ALICE, "/") == 0
    assert made.allowed_on(ALICE, ResourcePattern.parse("/")) == 0
    assert made.allows(ALICE, Action.ADMINISTER, "/a/b/c")


@example([("user:alice", "admin", "/*")], Action.PRODUCE, "/")
@given(_BINDINGS, st.sampled_from(Action), _RESOURCES | st.sampled_from(["schema:a", "schema:ab"]))
def test_what_is_allowed_has_a_binding_that_explains_it_and_what_is_denied_has_none(
    bindings: list[tuple[str, str, str]], action: Action, resource: str
) -> None:
    made = rules(*bindings)
    grant = made.explain(ALICE, action, ResourcePattern.parse(resource))
    assert (grant is not None) == made.allows(ALICE, action, resource)
    if grant is not None:
        assert str(grant.binding.subject) in ALICE.subjects() and grant.role in grant.binding.roles


@given(_BINDINGS, _PATTERNS, st.sampled_from(Action))
def test_what_is_allowed_on_a_pattern_is_allowed_on_what_it_matches(
    bindings: list[tuple[str, str, str]], pattern: str, action: Action
) -> None:
    made, parsed = rules(*bindings), ResourcePattern.parse(pattern)
    on_all = bool(made.allowed_on(ALICE, parsed) & action.bit)
    if parsed.has_wildcard:
        assert on_all == (made.explain(ALICE, action, parsed) is not None)
    if on_all:
        for letters in ("a", "ab", "b"):
            assert made.allows(ALICE, action, pattern.replace("*", letters).replace("?", letters[0]))
