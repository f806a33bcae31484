"""Administration of access: who may change roles, bindings and keys, and what everybody may ask."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from access_harness import ADMIN, ALICE, BOB, secured
from broker_harness import open_broker

from pydanube.broker import Broker
from pydanube.broker.security import administration
from pydanube.broker.security.administration import AccessAdministration
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import BUILT_IN_ROLES
from pydanube.core.identity import Identity
from pydanube.model.errors import AlreadyExists, Conflict, Denied, Full, Invalid, NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig

ORDERS = "/default/orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_broker(tmp_path, security=secured()) as opened:
        yield opened


@pytest.fixture
def access(broker: Broker) -> AccessAdministration:
    return broker.access


# -- roles -------------------------------------------------------------------------------------------------------------


async def test_a_role_is_made_changed_and_deleted(access: AccessAdministration) -> None:
    made = await access.create_role(ADMIN, "loader", ["produce", "create", "produce"])
    assert (made.name, made.actions, made.built_in) == ("loader", ("produce", "create"), False)
    assert await access.get_role(ADMIN, "loader") == made
    changed = await access.change_role(ADMIN, "loader", ["read"])
    assert changed.actions == ("read",) and changed.version != made.version
    assert [one.name for one in access.list_roles(ADMIN)] == [*BUILT_IN_ROLES, "loader"]
    await access.delete_role(ADMIN, "loader")
    with pytest.raises(NotFound, match="there is no role 'loader'"):
        await access.get_role(ADMIN, "loader")


async def test_a_change_that_expects_another_version_is_a_conflict(access: AccessAdministration) -> None:
    made = await access.create_role(ADMIN, "loader", ["produce"])
    changed = await access.change_role(ADMIN, "loader", ["read"], made.version)
    with pytest.raises(Conflict, match="role 'loader' has changed"):
        await access.change_role(ADMIN, "loader", ["consume"], made.version)
    with pytest.raises(Conflict):
        await access.delete_role(ADMIN, "loader", made.version)
    assert await access.get_role(ADMIN, "loader") == changed
    await access.delete_role(ADMIN, "loader", changed.version)


@pytest.mark.parametrize("name", BUILT_IN_ROLES)
async def test_built_in_roles_are_refused_by_name(access: AccessAdministration, name: str) -> None:
    with pytest.raises(AlreadyExists, match=f"'{name}' exists: it is built in"):
        await access.create_role(ADMIN, name, ["read"])
    with pytest.raises(Refused, match=f"'{name}' is built in"):
        await access.change_role(ADMIN, name, ["read"])
    with pytest.raises(Refused, match=f"'{name}' is built in"):
        await access.delete_role(ADMIN, name)


async def test_a_role_that_a_binding_has_is_not_deleted(access: AccessAdministration) -> None:
    await access.create_role(ADMIN, "loader", ["produce"])
    await access.create_binding(ADMIN, "user:bob", ["loader"], "/default", "b1")
    with pytest.raises(Refused, match="role 'loader' is in 1 bindings, for example 'b1'"):
        await access.delete_role(ADMIN, "loader")
    await access.delete_binding(ADMIN, "b1")
    await access.delete_role(ADMIN, "loader")


@pytest.mark.parametrize(
    ("name", "actions", "said"),
    [
        ("a/b", ["read"], "is not the name of a role"),
        ("", ["read"], "is not the name of a role"),
        (".hidden", ["read"], "is not the name of a role"),
        ("x" * 201, ["read"], "is not the name of a role"),
        ("loader", [], "needs at least one action"),
        ("loader", ["fly"], "'fly' is no action: use produce"),
    ],
)
async def test_bad_roles_are_invalid(access: AccessAdministration, name: str, actions: list[str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        await access.create_role(ADMIN, name, actions)


async def test_roles_need_administer_on_the_cluster(access: AccessAdministration) -> None:
    await access.create_binding(ADMIN, "user:alice", ["namespace-admin"], "/default")
    with pytest.raises(Denied, match="user:alice may not administer the cluster"):
        access.list_roles(ALICE)
    for work in (
        access.get_role(ALICE, "admin"),
        access.create_role(ALICE, "loader", ["read"]),
        access.change_role(ALICE, "loader", ["read"]),
        access.delete_role(ALICE, "loader"),
    ):
        with pytest.raises(Denied):
            await work


async def test_nobody_makes_a_role_of_what_they_may_not_do(access: AccessAdministration) -> None:
    await access.create_role(ADMIN, "clerk", ["administer"])
    await access.create_binding(ADMIN, "user:alice", ["clerk"], "/", "clerk")
    assert (await access.create_role(ALICE, "viewer", ["describe"])).actions == ("describe",)
    with pytest.raises(Denied, match="user:alice may not produce the cluster"):
        await access.create_role(ALICE, "loader", ["produce"])
    with pytest.raises(Denied, match="may not consume"):
        await access.change_role(ALICE, "clerk", ["administer", "consume"])


# -- bindings ----------------------------------------------------------------------------------------------------------


async def test_a_binding_is_in_force_when_the_call_returns(broker: Broker) -> None:
    topic = TopicName.parse(ORDERS)
    with pytest.raises(Denied):
        await broker.topics.create(BOB, topic, TopicConfig())
    made = await broker.access.create_binding(ADMIN, "user:bob", ["namespace-admin"], "/default")
    await broker.topics.create(BOB, topic, TopicConfig())
    await broker.access.delete_binding(ADMIN, made.id)
    with pytest.raises(Denied):
        await broker.topics.delete(BOB, topic)


async def test_a_namespace_admin_gives_and_takes_rights_in_its_namespace_only(access: AccessAdministration) -> None:
    await access.create_binding(ADMIN, "user:bob", ["namespace-admin"], "/shop", "b-shop")
    await access.create_binding(ADMIN, "user:carol", ["reader"], "/other", "b-other")
    made = await access.create_binding(BOB, "user:carol", ["producer"], "/shop/orders-*", "shop.carol")
    assert (str(made.subject), made.roles, str(made.resource)) == ("user:carol", ("producer",), "/shop/orders-*")
    assert [one.id for one in access.list_bindings(BOB).bindings] == ["b-shop", "shop.carol"]
    for resource in ("/", "/other", "/other/orders", "/*", "/sho*", "schema:orders", "/shopping"):
        with pytest.raises(Denied, match="user:bob may not administer"):
            await access.create_binding(BOB, "user:carol", ["reader"], resource)
    for hidden in ("b-other", "b-missing"):
        with pytest.raises(NotFound, match=f"there is no binding '{hidden}'"):
            await access.delete_binding(BOB, hidden)
        with pytest.raises(NotFound, match=f"there is no binding '{hidden}'"):
            await access.get_binding(BOB, hidden)
    await access.create_binding(ADMIN, "user:bob", ["reader"], "/other", "b-own")
    assert (await access.get_binding(BOB, "b-own")).id == "b-own"
    with pytest.raises(Denied, match="user:bob may not administer all of /other"):
        await access.delete_binding(BOB, "b-own")
    await access.delete_binding(BOB, "shop.carol")


async def test_who_administers_a_namespace_chooses_ids_of_its_own(access: AccessAdministration) -> None:
    """AlreadyExists for any other id would tell of bindings of other tenants."""
    await access.create_binding(ADMIN, "user:bob", ["namespace-admin"], "/shop", "b-shop")
    await access.create_binding(ADMIN, "user:alice", ["namespace-admin"], "/shop/orders", "shop.orders")
    await access.create_binding(ADMIN, "user:carol", ["namespace-admin"], "/shop.eu", "shop.eu.carol")
    for who, place in ((BOB, "/shop"), (ALICE, "/shop/orders")):
        for taken, free in (("b-shop", "b-none"), ("shop.eu.carol", "shop.eu.none"), ("shop.", "none.")):
            said = []
            for one in (taken, free):
                with pytest.raises(Denied, match="may not choose the id") as refused:
                    await access.create_binding(who, "user:dan", ["reader"], place, one)
                said.append(refused.value.message.replace(one, "ID"))
            assert said[0] == said[1]
    with pytest.raises(Denied, match="may not choose the id"):
        await access.create_binding(ALICE, "user:dan", ["reader"], "/shop/orders", "shop.orders")
    with pytest.raises(AlreadyExists, match="exists"):
        await access.create_binding(BOB, "user:dan", ["reader"], "/shop/*", "shop.orders")
    assert (await access.create_binding(BOB, "user:dan", ["reader"], "/shop", "shop.dan")).id == "shop.dan"


async def test_nobody_gives_what_they_do_not_have_there(access: AccessAdministration) -> None:
    await access.create_role(ADMIN, "clerk", ["administer", "read"])
    await access.create_binding(ADMIN, "group:ops", ["clerk"], "/shop")
    await access.create_binding(ALICE, "user:carol", ["reader"], "/shop/orders")
    with pytest.raises(Denied, match="user:alice may not produce all of /shop/orders"):
        await access.create_binding(ALICE, "user:carol", ["reader", "producer"], "/shop/orders")
    with pytest.raises(Denied, match="may not produce or consume or create or delete"):
        await access.create_binding(ALICE, ALICE.id, ["namespace-admin"], "/shop")


async def test_a_wildcard_for_one_character_does_not_cover_one_for_many(access: AccessAdministration) -> None:
    await access.create_binding(ADMIN, "user:bob", ["admin"], "/shop/order-?")
    await access.create_binding(BOB, "user:carol", ["reader"], "/shop/order-?")
    await access.create_binding(BOB, "user:carol", ["reader"], "/shop/order-1/billing")
    with pytest.raises(Denied):
        await access.create_binding(BOB, "user:carol", ["reader"], "/shop/order-*")


async def test_namespace_admin_is_refused_on_the_cluster(access: AccessAdministration) -> None:
    with pytest.raises(Refused, match="bind 'admin' to /"):
        await access.create_binding(ADMIN, "user:bob", ["namespace-admin"], "/")


@pytest.mark.parametrize(
    ("subject", "roles", "resource", "binding_id", "error", "said"),
    [
        ("user:", ["reader"], "/", "", Invalid, "not the name of a principal"),
        ("broker:b", ["reader"], "/", "", Invalid, "no type of principal"),
        ("user:bob", [], "/", "", Invalid, "a binding has 1 to 50 roles, not 0"),
        ("user:bob", [f"r{n}" for n in range(51)], "/", "", Invalid, "not 51"),
        ("user:bob", ["reader"], "orders", "", Invalid, "names no resource"),
        ("user:bob", ["reader"], "/", "a/b", Invalid, "not the id of a binding"),
        ("user:bob", ["unknown"], "/", "", NotFound, "there is no role 'unknown'"),
    ],
)
async def test_bad_bindings_are_refused(
    access: AccessAdministration,
    subject: str,
    roles: list[str],
    resource: str,
    binding_id: str,
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        await access.create_binding(ADMIN, subject, roles, resource, binding_id)


async def test_bindings_are_listed_by_subject_by_resource_and_in_pages(access: AccessAdministration) -> None:
    for number in range(5):
        await access.create_binding(ADMIN, f"user:u{number % 2}", ["reader"], f"/n{number % 3}", f"b{number}")
    assert [one.id for one in access.list_bindings(ADMIN, subject="user:u0").bindings] == ["b0", "b2", "b4"]
    assert [one.id for one in access.list_bindings(ADMIN, resource="/n0").bindings] == ["b0", "b3"]
    first = access.list_bindings(ADMIN, limit=2)
    second = access.list_bindings(ADMIN, after=first.next, limit=2)
    third = access.list_bindings(ADMIN, after=second.next, limit=2)
    assert [[one.id for one in page.bindings] for page in (first, second, third)] == [
        ["b0", "b1"],
        ["b2", "b3"],
        ["b4"],
    ]
    assert third.next == ""
    assert [one.id for one in access.list_bindings(Principal("u1")).bindings] == ["b1", "b3"]
    assert access.list_bindings(BOB).bindings == []
    with pytest.raises(AlreadyExists, match="binding 'b1' exists"):
        await access.create_binding(ADMIN, "user:u9", ["reader"], "/n9", "b1")
    with pytest.raises(NotFound, match="there is no binding 'b9'"):
        await access.delete_binding(ADMIN, "b9")


# -- API keys ----------------------------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_only_its_hash_is_stored(broker: Broker) -> None:
    made = await broker.access.create_key(ADMIN, "service_account:loader", ["etl"], 0, "nightly")
    prefix, key_id, secret = made.secret.split("_", 2)
    assert (prefix, key_id) == ("dnb", made.key.id)
    assert made.secret not in repr(made) and secret not in repr(made)
    assert broker.access.list_keys(ADMIN).keys == [made.key]
    assert (str(made.key.principal), made.key.groups, made.key.comment) == (
        "service_account:loader",
        ("etl",),
        "nightly",
    )
    stored = await broker._store.get(f"/security/keys/{key_id}")
    assert stored is not None
    assert hashlib.sha256(secret.encode()).digest() in stored.value and secret.encode() not in stored.value


async def test_everybody_has_keys_of_their_own_and_sees_no_others(access: AccessAdministration) -> None:
    own = await access.create_key(ALICE)
    grouped = await access.create_key(ALICE, ALICE.id, ["ops"])
    other = await access.create_key(ADMIN, "user:bob")
    assert own.key.principal.name == "alice"
    assert {one.id for one in access.list_keys(ALICE).keys} == {own.key.id, grouped.key.id}
    assert {one.id for one in access.list_keys(ADMIN).keys} == {own.key.id, grouped.key.id, other.key.id}
    assert [one.id for one in access.list_keys(ADMIN, "user:bob").keys] == [other.key.id]
    with pytest.raises(Denied):
        access.list_keys(ALICE, "user:bob")
    for work in (
        access.create_key(ALICE, "user:bob"),
        access.create_key(ALICE, groups=["admins"]),
        access.revoke_key(ALICE, other.key.id),
        access.revoke_key(ALICE, "0123456789abcdef"),
    ):
        with pytest.raises(Denied, match="user:alice may not administer the cluster"):
            await work
    await access.revoke_key(ALICE, own.key.id)
    await access.revoke_key(ADMIN, grouped.key.id)
    assert access.list_keys(ALICE).keys == []
    with pytest.raises(NotFound):
        await access.revoke_key(ADMIN, own.key.id)


async def test_a_key_is_never_more_powerful_than_who_makes_it_for_another(access: AccessAdministration) -> None:
    await access.create_role(ADMIN, "clerk", ["administer"])
    await access.create_binding(ADMIN, "user:alice", ["clerk"], "/")
    await access.create_binding(ADMIN, "group:root", ["admin"], "/")
    await access.create_key(ALICE, "user:bob")
    for principal, groups in ((ADMIN.id, []), ("user:bob", ["root"]), (ALICE.id, ["root"])):
        with pytest.raises(Denied, match="cannot make a key that may"):
            await access.create_key(ALICE, principal, groups)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"of": "group:ops"}, "is a group"),
        ({"of": "broker:b1"}, "no type of principal"),
        ({"expires_at": 1}, "would have ended"),
        ({"expires_at": -1}, "would have ended"),
        ({"comment": "x" * 201}, "at most 200"),
        ({"comment": "two\nlines"}, "on one line"),
        ({"groups": ["a b"]}, "not the name of a principal"),
        ({"groups": [f"g{n}" for n in range(51)]}, "at most 50 groups"),
    ],
)
async def test_bad_keys_are_invalid(access: AccessAdministration, fields: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        await access.create_key(ADMIN, **fields)  # type: ignore[arg-type]
    assert access.list_keys(ADMIN).keys == []


async def test_a_key_given_in_place_of_its_id_is_not_repeated(access: AccessAdministration) -> None:
    made = await access.create_key(ADMIN)
    secret = made.secret.split("_", 2)[2]
    for wrong in (made.secret, made.secret + "/", made.secret.removeprefix("dnb_"), secret):
        with pytest.raises(Invalid) as raised:
            await access.revoke_key(ADMIN, wrong)
        assert secret not in str(raised.value)


async def test_limits_are_kept_and_named(access: AccessAdministration, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLES_MAX", "BINDINGS_MAX", "API_KEYS_PER_PRINCIPAL_MAX"):
        monkeypatch.setattr(administration, name, 1)
    monkeypatch.setattr(administration, "API_KEYS_MAX", 2)
    await access.create_role(ADMIN, "one", ["read"])
    with pytest.raises(Full, match="there are 1 roles"):
        await access.create_role(ADMIN, "two", ["read"])
    await access.create_binding(ADMIN, "user:bob", ["reader"], "/default")
    with pytest.raises(Full, match="there are 1 bindings"):
        await access.create_binding(ADMIN, "user:bob", ["reader"], "/other")
    await access.create_key(BOB)
    with pytest.raises(Full, match="user:bob has 1 API keys"):
        await access.create_key(BOB)
    await access.create_key(ALICE)
    with pytest.raises(Full, match="there are 2 API keys"):
        await access.create_key(ADMIN)


# -- questions ---------------------------------------------------------------------------------------------------------


async def test_whoami_tells_how_one_is_known_and_which_bindings_count(access: AccessAdministration) -> None:
    await access.create_binding(ADMIN, "user:alice", ["reader"], "/default", "b2")
    await access.create_binding(ADMIN, "group:ops", ["monitor"], "/", "b1")
    await access.create_binding(ADMIN, "user:bob", ["reader"], "/default", "b3")
    found = access.whoami(ALICE, Identity(ALICE, "jwt", 17))
    assert (found.principal, found.groups, found.method, found.expires_at) == ("user:alice", ("ops",), "jwt", 17)
    assert [one.id for one in found.bindings] == ["b1", "b2"] and not found.is_super_user
    assert access.whoami(ADMIN).is_super_user


async def test_can_names_the_binding_and_the_role_or_says_that_none_does(access: AccessAdministration) -> None:
    await access.create_binding(ADMIN, "group:ops", ["monitor", "producer"], "/default", "b1")
    answer = access.can(ALICE, "produce", ORDERS)
    assert (answer.allowed, answer.binding, answer.role) == (True, "b1", "producer")
    assert answer.reason == "binding 'b1' gives group:ops the role 'producer' on /default"
    answer = access.can(ALICE, "consume", ORDERS)
    assert (answer.allowed, answer.binding) == (False, "")
    assert answer.reason == f"no binding of user:alice or its groups (ops) gives a role with consume on {ORDERS}"
    assert access.can(ADMIN, "delete", "/").reason == "user:admin is a super user, which may do everything"
    assert access.can(ADMIN, "produce", ORDERS, "user:bob").allowed is False
    assert access.can(ADMIN, "produce", ORDERS, "user:bob", ["ops"]).allowed is True
    assert access.can(ADMIN, "produce", ORDERS, "group:ops").allowed is True


async def test_only_administrators_ask_for_others(access: AccessAdministration) -> None:
    assert access.can(ALICE, "produce", ORDERS, "user:alice").allowed is False
    for who, groups in (("user:bob", []), ("", ["admins"]), ("user:alice", ["admins"])):
        with pytest.raises(Denied, match="user:alice may not administer the cluster"):
            access.can(ALICE, "produce", ORDERS, who, groups)


async def test_a_broker_without_authentication_says_what_to_set(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        access = broker.access
        for refused in (access.list_roles, access.list_bindings, access.list_keys):
            with pytest.raises(Refused, match=r"set auth.enabled = true"):
                refused(ANONYMOUS)
        for work in (
            access.create_role(ANONYMOUS, "loader", ["read"]),
            access.create_binding(ANONYMOUS, "user:bob", ["reader"], "/"),
            access.create_key(ANONYMOUS),
            access.revoke_key(ANONYMOUS, "k"),
        ):
            with pytest.raises(Refused, match="no authentication"):
                await work
        assert access.whoami(ANONYMOUS).authentication is False
        answer = access.can(ANONYMOUS, "administer", "/", "user:bob")
        assert answer.allowed and "no authentication" in answer.reason


async def test_what_was_changed_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_broker(tmp_path, security=secured()) as broker:
        await broker.access.create_role(ADMIN, "loader", ["produce"])
        await broker.access.create_binding(ADMIN, "user:bob", ["loader"], "/default", "b1")
        made = await broker.access.create_key(ADMIN, "user:bob")
    async with open_broker(tmp_path, security=secured()) as broker:
        assert (await broker.access.get_role(ADMIN, "loader")).actions == ("produce",)
        assert broker.access.can(ADMIN, str(Action.PRODUCE), ORDERS, "user:bob").binding == "b1"
        assert broker.access.list_keys(ADMIN).keys == [made.key]


async def test_a_namespace_has_a_share_of_the_bindings(
    access: AccessAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "BINDINGS_PER_NAMESPACE_MAX", 6)
    for namespace in ("/shop", "/shopping"):
        await access.create_binding(ADMIN, "user:bob", ["namespace-admin"], namespace)
    await access.create_binding(BOB, "user:carol", ["reader"], "/shop/orders")
    await access.create_binding(BOB, "user:carol", ["reader"], "/shop/invoices")
    made = await access.create_binding(BOB, "user:carol", ["reader"], "/shop/orders/billing")
    for resource in ("/shop", "/shop/other", "/shop/orders-*"):
        with pytest.raises(Full, match="user:bob has made 3 bindings in namespace /shop, and the 2 left"):
            await access.create_binding(BOB, "user:carol", ["reader"], resource)
    await access.create_binding(BOB, "user:carol", ["reader"], "/shopping/orders")
    others = [await access.create_binding(ADMIN, "user:carol", ["reader"], f"/shop/{one}") for one in ("more", "most")]
    with pytest.raises(Full, match="namespace /shop has 6 bindings"):
        await access.create_binding(BOB, "user:carol", ["reader"], "/shop/other")
    for one in (made, *others):
        await access.delete_binding(ADMIN, one.id)
    await access.create_binding(BOB, "user:carol", ["reader"], "/shop/other")
