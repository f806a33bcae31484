"""danube_admin.SecurityAdmin: roles and bindings in Danube's words (`permissions`).

Built-in roles are shown as system roles. The id of a binding counts for the whole cluster, whatever its scope is. What
exists is not overwritten: ALREADY_EXISTS. A broker without authentication answers FAILED_PRECONDITION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydanube.core.access import Principal
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.security import Binding, Role

from .calls import Call
from .messages import ADMIN
from .permissions import actions_of, permissions_of, resource_of, scope_of
from .resources import BrokerService


class SecurityAdmin(BrokerService):
    """Roles and bindings."""

    async def create_role(self, call: Call, request: Any) -> Any:
        role = request.role
        if role.system:
            raise Invalid("system roles are built in: leave `system` away")
        await self._broker.access.create_role(call.principal, role.name, actions_of(role.permissions))
        return ADMIN["CreateRoleResponse"](success=True)

    async def get_role(self, call: Call, request: Any) -> Any:
        return ADMIN["GetRoleResponse"](role=_role(await self._broker.access.get_role(call.principal, request.name)))

    async def list_roles(self, call: Call, _request: Any) -> Any:
        return ADMIN["ListRolesResponse"](roles=map(_role, self._broker.access.list_roles(call.principal)))

    async def delete_role(self, call: Call, request: Any) -> Any:
        await self._broker.access.delete_role(call.principal, request.name)
        return ADMIN["DeleteRoleResponse"](success=True)

    async def create_binding(self, call: Call, request: Any) -> Any:
        given = request.binding
        if not given.id:
            raise Invalid("a binding needs an id: choose one")
        await self._broker.access.create_binding(
            call.principal,
            f"{given.principal_type}:{given.principal_name}",
            list(given.role_names),
            resource_of(given.scope, given.resource_name),
            given.id,
        )
        return ADMIN["CreateBindingResponse"](success=True)

    async def get_binding(self, call: Call, request: Any) -> Any:
        return ADMIN["GetBindingResponse"](binding=_binding(await self._find(call, request)))

    async def list_bindings(self, call: Call, request: Any) -> Any:
        resource = resource_of(request.scope, request.resource_name)
        return ADMIN["ListBindingsResponse"](bindings=map(_binding, self._bindings(call.principal, resource)))

    async def list_all_bindings(self, call: Call, _request: Any) -> Any:
        return ADMIN["ListBindingsResponse"](bindings=map(_binding, self._bindings(call.principal)))

    async def delete_binding(self, call: Call, request: Any) -> Any:
        await self._broker.access.delete_binding(call.principal, (await self._find(call, request)).id)
        return ADMIN["DeleteBindingResponse"](success=True)

    async def _find(self, call: Call, request: Any) -> Binding:
        """Return the binding that a request names by its id and by what it covers."""
        wanted = resource_of(request.scope, request.resource_name)
        found = await self._broker.access.get_binding(call.principal, request.binding_id)
        if str(found.resource) != wanted:
            raise NotFound(f"there is no binding {request.binding_id!r} on {wanted}")
        return found

    def _bindings(self, principal: Principal, resource: str = "") -> Iterable[Binding]:
        after = ""
        while True:
            page = self._broker.access.list_bindings(principal, resource=resource, after=after)
            yield from page.bindings
            after = page.next
            if not after:
                return


def _role(role: Role) -> Any:
    return ADMIN["RoleDefinition"](name=role.name, permissions=permissions_of(role.actions), system=role.built_in)


def _binding(binding: Binding) -> Any:
    scope = scope_of(binding.resource)
    return ADMIN["BindingDefinition"](
        id=binding.id,
        principal_type=binding.subject.type,
        principal_name=binding.subject.name,
        role_names=binding.roles,
        scope=scope.scope,
        resource_name=scope.resource_name,
    )
