"""Roles, bindings and API keys over each listener of a broker with authentication.

The caller is anonymous, as on a listener that is shown no credentials, and a super user where the test says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc_peer
import http_peer
import pytest
from access_harness import ADMIN, secured
from broker_harness import open_broker
from grpc import StatusCode
from grpc_peer import GrpcPeer, connect
from http_peer import Answer, HttpListener, Peer
from hypothesis import given
from hypothesis import strategies as st

import pydanube
from pydanube.broker import Broker
from pydanube.client import Access, BlockingAccess
from pydanube.core.access import ANONYMOUS, Action
from pydanube.gateway.grpc import GrpcServer
from pydanube.gateway.grpc.permissions import PERMISSIONS, actions_of, permissions_of, resource_of, scope_of
from pydanube.gateway.http import HttpServer
from pydanube.gateway.native.server import NativeServer
from pydanube.model.errors import AlreadyExists, Conflict, Denied, Invalid, Refused
from pydanube.model.security import ResourcePattern
from pydanube.model.settings.sections import LimitSettings, Sections
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

SUPER = ANONYMOUS.id
SECURITY = "danube_admin.SecurityAdmin"


@asynccontextmanager
async def native(directory: Path, super_user: str = SUPER, **options: Any) -> AsyncIterator[tuple[Broker, str]]:
    """A broker with a native listener; yields it and its URL."""
    async with open_broker(directory, security=secured(super_user), **options) as broker, Tasks() as tasks:
        server = NativeServer(broker, LimitSettings(), SystemClock(), tasks)
        host, port = await server.start("127.0.0.1", 0)
        try:
            yield broker, f"danube://{host}:{port}"
        finally:
            await server.close(0)


@asynccontextmanager
async def http(directory: Path, super_user: str = SUPER) -> AsyncIterator[HttpListener]:
    async with open_broker(directory, security=secured(super_user)) as broker, Tasks() as tasks:
        server = HttpServer(broker, Sections(), SystemClock(), tasks)
        address = await server.start("127.0.0.1", 0)
        try:
            yield HttpListener(server, address, broker, "")
        finally:
            await server.close(0)


@asynccontextmanager
async def grpc_admin(directory: Path, super_user: str = SUPER) -> AsyncIterator[GrpcPeer]:
    async with open_broker(directory, security=secured(super_user)) as broker, Tasks() as tasks:
        server = GrpcServer(broker, Sections(), SystemClock(), tasks)
        await server.open_data("127.0.0.1", 0)
        host, port = await server.open_admin("127.0.0.1", 0)
        await server.start()
        try:
            async with connect(f"{host}:{port}") as peer:
                yield peer
        finally:
            await server.close(0)


async def call(there: HttpListener, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    async with await Peer.connect(there) as peer:
        encoded = None if body is None else json.dumps(body).encode()
        return await peer.request(method, f"/api/v1/access/{path}", encoded, **headers)


# -- native ------------------------------------------------------------------------------------------------------------


async def test_a_client_administers_access(tmp_path: Path) -> None:
    async with native(tmp_path) as (broker, url), pydanube.connect(url) as client:
        access = client.access
        me = await access.whoami()
        assert (me.principal, me.is_super_user, me.authentication, me.expires_at) == (SUPER, True, True, 0)
        role = await access.create_role("loader", ["produce", "create"])
        assert await access.role("loader") == role and role in await access.roles()
        changed = await access.change_role("loader", ["produce"], expected=role.version)
        with pytest.raises(Conflict):
            await access.change_role("loader", ["read"], expected=role.version)
        made = await access.create_binding("service_account:etl", ["loader"], "/default/orders-*", binding_id="b1")
        assert await access.binding("b1") == made
        assert await access.bindings(subject="service_account:etl") == [made]
        assert await access.bindings(resource="/other") == []
        answer = await access.can("produce", "/default/orders-eu", principal="service_account:etl")
        assert (answer.allowed, answer.binding, answer.role) == (True, "b1", "loader")
        end = datetime.now(UTC) + timedelta(days=90)
        key = await access.create_key("service_account:etl", groups=["etl"], expires_at=end, comment="nightly")
        assert key.secret.startswith(f"dnb_{key.key.id}_") and key.secret not in repr(key)
        assert await access.keys(principal="service_account:etl") == [key.key]
        await access.revoke_key(key.key.id)
        assert await access.keys() == []
        await access.delete_binding("b1")
        await access.delete_role("loader", expected=changed.version)
        assert not (await access.can("produce", "/default/orders-eu", principal="service_account:etl")).allowed
        with pytest.raises(AlreadyExists, match="built in"):
            await access.create_role("admin", ["read"])
        with pytest.raises(Invalid, match="actions is a list"):
            await access.create_role("loader", "read")
        assert broker.access.list_bindings(ADMIN).bindings == []


async def test_more_bindings_than_fit_one_answer_come_in_several(tmp_path: Path) -> None:
    async with native(tmp_path) as (broker, url), pydanube.connect(url) as client:
        names = [f"{'r' * 190}{number}" for number in range(50)]
        for name in names:
            await broker.access.create_role(ANONYMOUS, name, ["read"])
        for number in range(150):  # together 1.5 MB: more than a control frame takes
            await broker.access.create_binding(ANONYMOUS, SUPER, names, "/default", f"b{number:03}")
        assert [one.id for one in await client.access.bindings()] == [f"b{number:03}" for number in range(150)]
        assert 0 < len((await client.access.whoami()).bindings) < 150


async def test_a_caller_without_rights_is_denied_and_may_still_ask_about_itself(tmp_path: Path) -> None:
    async with native(tmp_path, ADMIN.id) as (broker, url):
        await broker.access.create_binding(ADMIN, SUPER, ["monitor"], "/", "b1")
        async with pydanube.connect(url) as client:
            for work in (
                client.access.roles(),
                client.access.create_role("loader", ["read"]),
                client.access.create_binding(SUPER, ["admin"], "/"),
                client.access.create_key("user:admin"),
                client.access.can("read", "/", principal="user:bob"),
            ):
                with pytest.raises(Denied, match=f"{SUPER} may not administer"):
                    await work
            assert [one.id for one in (await client.access.whoami()).bindings] == ["b1"]
            assert (await client.access.can("describe", "/")).binding == "b1"


async def test_the_blocking_client_has_the_same_surface(tmp_path: Path) -> None:
    def work(url: str) -> list[str]:
        with pydanube.connect_blocking(url) as client:
            client.access.create_role("loader", ["read"])
            return [one.name for one in client.access.roles()]

    async with native(tmp_path) as (_, url):
        assert "loader" in await asyncio.to_thread(work, url)
    names = {name for name in dir(Access) if not name.startswith("_")}
    assert names == {name for name in dir(BlockingAccess) if not name.startswith("_")}


# -- HTTP --------------------------------------------------------------------------------------------------------------


async def test_access_is_administered_by_rest(tmp_path: Path) -> None:
    async with http(tmp_path) as there:
        made = await call(there, "PUT", "roles/loader", {"actions": ["produce"]})
        assert (made.status, made.headers["location"]) == (201, "/api/v1/access/roles/loader")
        assert (await call(there, "PUT", "roles/loader", {"actions": ["produce"]})).status == 409
        found = await call(there, "GET", "roles/loader")
        assert found.json() == {
            "name": "loader",
            "actions": ["produce"],
            "built_in": False,
            "version": found.headers["etag"].strip('"'),
        }
        tag = found.headers["etag"]
        assert (await call(there, "PATCH", "roles/loader", {"actions": ["read"]}, if_match=tag)).status == 200
        assert (await call(there, "PATCH", "roles/loader", {"actions": ["create"]}, if_match=tag)).status == 412
        assert (await call(there, "PATCH", "roles/loader", {"actions": ["fly"]})).status == 400
        body = {"subject": "user:bob", "roles": ["loader"], "resource": "/default", "id": "b1"}
        made = await call(there, "POST", "bindings", body)
        assert (made.status, made.json(), made.headers["location"]) == (201, body, "/api/v1/access/bindings/b1")
        assert (await call(there, "GET", "bindings?subject=user:bob")).json() == {"bindings": [body], "next": ""}
        assert (await call(there, "GET", "bindings?resource=/other")).json()["bindings"] == []
        assert (await call(there, "DELETE", "roles/loader")).status == 409
        asked = (await call(there, "GET", "can?action=read&resource=/default/orders&principal=user:bob")).json()
        assert (asked["allowed"], asked["binding"], asked["role"]) == (True, "b1", "loader")
        key = await call(there, "POST", "keys", {"principal": "user:bob"})
        assert (
            key.status == 201 and key.json()["secret"].startswith("dnb_") and "no-store" in key.headers["cache-control"]
        )
        key_id = key.json()["key"]["id"]
        (listed,) = (await call(there, "GET", "keys")).json()["keys"]
        assert listed["id"] == key_id and "secret" not in listed and "hash" not in listed
        assert (await call(there, "DELETE", f"keys/{key_id}")).status == 204
        assert (await call(there, "DELETE", f"keys/{key_id}")).status == 404
        assert (await call(there, "DELETE", "bindings/b1")).status == 204
        assert (await call(there, "DELETE", "roles/loader")).status == 204
        assert (await call(there, "GET", "whoami")).json()["principal"] == SUPER


async def test_who_may_not_administer_gets_403_by_rest(tmp_path: Path) -> None:
    async with http(tmp_path, ADMIN.id) as there:
        for method, path, body in (
            ("GET", "roles", None),
            ("PUT", "roles/loader", {"actions": ["read"]}),
            ("POST", "bindings", {"subject": SUPER, "roles": ["admin"], "resource": "/"}),
            ("POST", "keys", {"principal": "user:admin"}),
            ("GET", "can?action=read&resource=/&principal=user:bob", None),
        ):
            assert (await call(there, method, path, body)).status == 403, path
        assert (await call(there, "GET", "can?action=read&resource=/")).json()["allowed"] is False


# -- gRPC --------------------------------------------------------------------------------------------------------------


async def test_access_is_administered_by_danubes_api(tmp_path: Path) -> None:
    async with grpc_admin(tmp_path) as admin:
        role = {"name": "orders-writer", "permissions": ["Produce", "Lookup"]}
        assert (await admin.call(f"{SECURITY}/CreateRole", role=role)).success
        found = (await admin.call(f"{SECURITY}/GetRole", name="orders-writer")).role
        assert (set(found.permissions), found.system) == ({"Produce", "Lookup"}, False)
        roles = {one.name: one for one in (await admin.call(f"{SECURITY}/ListRoles")).roles}
        assert roles["admin"].system and set(PERMISSIONS) <= set(roles["admin"].permissions)
        assert set(roles["reader"].permissions) == {"Lookup", "read"}
        binding = {
            "id": "b-writer",
            "principal_type": "service_account",
            "principal_name": "writer",
            "role_names": ["orders-writer"],
            "scope": "topic",
            "resource_name": "/payments/orders",
        }
        assert (await admin.call(f"{SECURITY}/CreateBinding", binding=binding)).success
        at = {"scope": "topic", "resource_name": "/payments/orders"}
        found = (await admin.call(f"{SECURITY}/GetBinding", **at, binding_id="b-writer")).binding
        assert {name: getattr(found, name) for name in binding} == binding
        assert [one.id for one in (await admin.call(f"{SECURITY}/ListBindings", **at)).bindings] == ["b-writer"]
        assert not (await admin.call(f"{SECURITY}/ListBindings", scope="cluster")).bindings
        assert len((await admin.call(f"{SECURITY}/ListAllBindings")).bindings) == 1
        elsewhere = await admin.status(f"{SECURITY}/DeleteBinding", scope="cluster", binding_id="b-writer")
        assert elsewhere[0] is StatusCode.NOT_FOUND
        assert (await admin.status(f"{SECURITY}/CreateBinding", binding=binding))[0] is StatusCode.ALREADY_EXISTS
        assert (await admin.status(f"{SECURITY}/DeleteRole", name="orders-writer"))[0] is StatusCode.FAILED_PRECONDITION
        assert (await admin.call(f"{SECURITY}/DeleteBinding", **at, binding_id="b-writer")).success
        assert (await admin.call(f"{SECURITY}/DeleteRole", name="orders-writer")).success
        for wrong in (
            {"name": "x", "permissions": ["Replicate"]},
            {"name": "x", "permissions": ["Produce"], "system": True},
            {"name": "x", "permissions": []},
        ):
            assert (await admin.status(f"{SECURITY}/CreateRole", role=wrong))[0] is StatusCode.INVALID_ARGUMENT
        code, details = await admin.status(f"{SECURITY}/DeleteRole", name="producer")
        assert code is StatusCode.FAILED_PRECONDITION and "'producer' is built in" in details


async def test_who_may_not_administer_gets_permission_denied_by_grpc(tmp_path: Path) -> None:
    async with grpc_admin(tmp_path, ADMIN.id) as admin:
        assert (await admin.status(f"{SECURITY}/ListRoles"))[0] is StatusCode.PERMISSION_DENIED
        role = {"name": "x", "permissions": ["Produce"]}
        assert (await admin.status(f"{SECURITY}/CreateRole", role=role))[0] is StatusCode.PERMISSION_DENIED


@given(st.sets(st.sampled_from(sorted(PERMISSIONS))))
def test_permissions_come_back_from_the_actions_they_stand_for(permissions: set[str]) -> None:
    actions = actions_of(permissions)
    shown = permissions_of(actions)
    assert permissions <= set(shown) <= set(PERMISSIONS)
    assert set(actions_of(shown)) == set(actions)


@given(st.sets(st.sampled_from([str(one) for one in Action])))
def test_actions_come_back_from_the_permissions_that_show_them(actions: set[str]) -> None:
    assert set(actions_of(permissions_of(actions))) == actions


def test_every_action_has_a_permission_and_no_permission_is_without_actions() -> None:
    assert {one for actions in PERMISSIONS.values() for one in actions} == set(Action)
    assert all(PERMISSIONS.values())
    with pytest.raises(Invalid, match="permission 'Replicate' means nothing here"):
        actions_of(["Replicate"])


@pytest.mark.parametrize(
    ("scope", "name", "resource"),
    [
        ("cluster", "", "/"),
        ("namespace", "/shop", "/shop"),
        ("topic", "/shop/orders-*", "/shop/orders-*"),
        ("subscription", "/shop/orders/billing", "/shop/orders/billing"),
        ("schema", "orders-value", "schema:orders-value"),
    ],
)
def test_scopes_come_back_from_resources(scope: str, name: str, resource: str) -> None:
    assert resource_of(scope, name) == resource
    assert scope_of(ResourcePattern.parse(resource)) == (scope, name)


def test_a_namespace_may_be_named_without_its_slash() -> None:
    assert resource_of("namespace", "shop") == "/shop"


@pytest.mark.parametrize(
    ("scope", "name"), [("galaxy", ""), ("cluster", "/shop"), ("namespace", "/a/b"), ("topic", "/a"), ("namespace", "")]
)
def test_names_that_are_not_of_their_scope_are_invalid(scope: str, name: str) -> None:
    with pytest.raises(Invalid):
        resource_of(scope, name)


# -- without authentication --------------------------------------------------------------------------------------------


async def test_a_broker_without_authentication_says_so_on_each_listener() -> None:
    async with pydanube.testing.broker() as url, pydanube.connect(url) as client:
        with pytest.raises(Refused, match=r"set auth.enabled = true"):
            await client.access.roles()
        assert (await client.access.whoami()).authentication is False
        assert (await client.access.can("administer", "/")).allowed
    async with grpc_peer.open_listener() as there, connect(there.admin) as admin:
        code, details = await admin.status(f"{SECURITY}/ListRoles")
        assert code is StatusCode.FAILED_PRECONDITION and "auth.enabled" in details
    async with http_peer.open_listener() as listener:
        refused = await call(listener, "GET", "roles")
        assert refused.status == 409 and "auth.enabled" in refused.json()["detail"]
        assert (await call(listener, "GET", "whoami")).json()["authentication"] is False
