"""danube_admin.SecurityAdmin: roles and bindings in Danube's words (`permissions`).

Built-in roles are shown as system roles. The id of a binding counts for the whole cluster, whatever its scope is. What
exists is not overwritten: ALREADY_EXISTS. A broker without authentication answers FAILED_PRECONDITION.
"""

from __future__ import annotations

from typing import Any

from pydanube.model.errors import Invalid, NotFound
from pydanube.model.security import Binding, Role
from pydanube.operations import access

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
        await self._do(call, access.CreateRole(name=role.name, actions=actions_of(role.permissions)))
        return ADMIN["CreateRoleResponse"](success=True)

    async def get_role(self, call: Call, request: Any) -> Any:
        return ADMIN["GetRoleResponse"](role=_role(await self._do(call, access.GetRole(name=request.name))))

    async def list_roles(self, call: Call, _request: Any) -> Any:
        return ADMIN["ListRolesResponse"](roles=map(_role, (await self._do(call, access.ListRoles())).roles))

    async def delete_role(self, call: Call, request: Any) -> Any:
        await self._do(call, access.DeleteRole(name=request.name))
        return ADMIN["DeleteRoleResponse"](success=True)

    async def create_binding(self, call: Call, request: Any) -> Any:
        given = request.binding
        if not given.id:
            raise Invalid("a binding needs an id: choose one")
        operation = access.CreateAccessBinding(
            subject=f"{given.principal_type}:{given.principal_name}",
            roles=list(given.role_names),
            resource=resource_of(given.scope, given.resource_name),
            id=given.id,
        )
        await self._do(call, operation)
        return ADMIN["CreateBindingResponse"](success=True)

    async def get_binding(self, call: Call, request: Any) -> Any:
        return ADMIN["GetBindingResponse"](binding=_binding(await self._find(call, request)))

    async def list_bindings(self, call: Call, request: Any) -> Any:
        resource = resource_of(request.scope, request.resource_name)
        return ADMIN["ListBindingsResponse"](bindings=map(_binding, await self._bindings(call, resource)))

    async def list_all_bindings(self, call: Call, _request: Any) -> Any:
        return ADMIN["ListBindingsResponse"](bindings=map(_binding, await self._bindings(call)))

    async def delete_binding(self, call: Call, request: Any) -> Any:
        await self._do(call, access.DeleteAccessBinding(id=(await self._find(call, request)).id))
        return ADMIN["DeleteBindingResponse"](success=True)

    async def _find(self, call: Call, request: Any) -> Binding:
        """Return the binding that a request names by its id and by what it covers."""
        wanted = resource_of(request.scope, request.resource_name)
        found = await self._do(call, access.GetAccessBinding(id=request.binding_id))
        if str(found.resource) != wanted:
            raise NotFound(f"there is no binding {request.binding_id!r} on {wanted}")
        return found

    async def _bindings(self, call: Call, resource: str = "") -> list[Binding]:
        found, after = list[Binding](), ""
        while True:
            page = await self._do(call, access.ListAccessBindings(resource=resource, after=after))
            found += page.bindings
            after = page.next
            if not after:
                return found


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
