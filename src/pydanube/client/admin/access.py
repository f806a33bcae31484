"""Access control: `client.access`.

```python
me = await client.access.whoami()
await client.access.create_binding("service_account:loader", ["producer"], "/default/orders-*")
made = await client.access.create_key("service_account:loader", expires_in=90 * 86_400)
print(made.key.id, made.secret)         # the only time that the secret is shown
await client.access.set_quota("/shop", publish_bytes_per_s=10_000_000)
```

Requests that make or delete something are sent once: after a lost answer, ask what there is before sending them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from pydanube.client.settings import check_count, check_number
from pydanube.model.errors import Invalid
from pydanube.model.positions import micros_from_datetime
from pydanube.model.quotas import LIMIT_MAX, LIMIT_NAMES, Quota, QuotaSubject
from pydanube.model.security import AccessAnswer, ApiKey, Binding, CallerIdentity, NewApiKey, Role
from pydanube.operations import access
from pydanube.runtime.clock import MICROSECONDS

from .area import Area

ENTRIES_AT_ONCE: Final = 500
"""Bindings and keys that are asked for at a time: the most that a broker answers."""


class Access(Area):
    """The roles, bindings, API keys and quotas of a client's cluster. Made by `client.access`.

    A subject or principal is written `type:name`, for example `user:alice`, `service_account:loader` or `group:ops`; a
    resource `/` (the cluster), `/namespace`, `/namespace/topic`, `/namespace/topic/subscription` or `schema:subject`. A
    broker without authentication raises Refused, but for `whoami`, `can` and quotas.
    """

    async def whoami(self) -> CallerIdentity:
        """Return who this client is for the broker, and its bindings."""
        return await self._client._do(access.WhoAmI())

    async def can(self, action: str, resource: str, *, principal: str = "", groups: Iterable[str] = ()) -> AccessAnswer:
        """Return whether this client may do an action to a resource, and why.

        action      produce, consume, read, describe, create, delete or administer
        principal   ask for somebody else, as a member of `groups`; that needs ADMINISTER on the cluster
        """
        asked = access.AskAccess(action=action, resource=resource, principal=principal, groups=list(groups))
        return await self._client._do(asked)

    async def roles(self) -> list[Role]:
        """Return all roles, the built-in ones first."""
        return (await self._client._do(access.ListRoles())).roles

    async def role(self, name: str) -> Role:
        return await self._client._do(access.GetRole(name=name))

    async def create_role(self, name: str, actions: Sequence[str]) -> Role:
        """Make a role of actions."""
        return await self._client._do(access.CreateRole(name=name, actions=_words("actions", actions)))

    async def change_role(self, name: str, actions: Sequence[str], *, expected: str = "") -> Role:
        """Replace the actions of a role. Raises Conflict if its version is not `expected` any more."""
        changed = access.ChangeRole(name=name, actions=_words("actions", actions), expected=expected)
        return await self._client._do(changed)

    async def delete_role(self, name: str, *, expected: str = "") -> None:
        """Delete a role that no binding has."""
        await self._client._do(access.DeleteRole(name=name, expected=expected))

    async def bindings(self, *, subject: str = "", resource: str = "") -> list[Binding]:
        """Return the bindings that this client may delete, and its own.

        subject     only of this subject
        resource    only those whose resource is written so
        """
        found: list[Binding] = []
        after = ""
        while True:
            asked = access.ListAccessBindings(subject=subject, resource=resource, after=after, limit=ENTRIES_AT_ONCE)
            page = await self._client._do(asked)
            found += page.bindings
            after = page.next
            if not after:
                return found

    async def binding(self, binding_id: str) -> Binding:
        return await self._client._do(access.GetAccessBinding(id=binding_id))

    async def create_binding(
        self, subject: str, roles: Sequence[str], resource: str, *, binding_id: str = ""
    ) -> Binding:
        """Give roles to a subject on a resource, and on everything below it. Without an id, the broker makes one."""
        made = access.CreateAccessBinding(
            subject=subject, roles=_words("roles", roles), resource=resource, id=binding_id
        )
        return await self._client._do(made)

    async def delete_binding(self, binding_id: str) -> None:
        """Take away what a binding gives."""
        await self._client._do(access.DeleteAccessBinding(id=binding_id))

    async def keys(self, *, principal: str = "") -> list[ApiKey]:
        """Return the API keys of a principal; without one all, or this client's own if it may not see all."""
        found: list[ApiKey] = []
        after = ""
        while True:
            page = await self._client._do(access.ListApiKeys(principal=principal, after=after, limit=ENTRIES_AT_ONCE))
            found += page.keys
            after = page.next
            if not after:
                return found

    async def create_key(
        self,
        principal: str = "",
        *,
        groups: Iterable[str] = (),
        expires_in: float | None = None,
        expires_at: datetime | None = None,
        comment: str = "",
    ) -> NewApiKey:
        """Make an API key for a principal, without one for this client's own, and return it with its secret.

        groups      the groups that a caller with this key is in
        expires_in, expires_at      after how many seconds, or when, it ends; neither: never
        comment     what it is for; everybody who may list the key can read it
        """
        end = self._end(expires_in, expires_at)
        made = access.CreateApiKey(
            principal=principal, groups=_words("groups", groups), expires_at=end, comment=comment
        )
        return await self._client._do(made)

    def _end(self, expires_in: float | None, expires_at: datetime | None) -> int:
        if expires_in is not None and expires_at is not None:
            raise Invalid("a key ends after `expires_in` seconds or at `expires_at`: give one of them")
        if expires_in is not None:
            check_number("expires_in", expires_in, 1, 1e10)
            return self._client._brokers.clock.now_us() + int(expires_in * MICROSECONDS)
        return 0 if expires_at is None else micros_from_datetime(expires_at)

    async def revoke_key(self, key_id: str) -> None:
        """Make an API key worthless at once. Sessions that it opened end."""
        await self._client._do(access.RevokeApiKey(id=key_id))

    async def quotas(self) -> list[Quota]:
        """Return the quotas that this client may see, each with what is used of it now at the broker that answers."""
        found: list[Quota] = []
        after = ""
        while True:
            page = await self._client._do(access.ListQuotas(after=after, limit=ENTRIES_AT_ONCE))
            found += page.quotas
            after = page.next
            if not after:
                return found

    async def quota(self, subject: str) -> Quota:
        """Return the quota of a subject: a principal, all principals of a type (`user:*`), or a namespace (`/shop`).
        Raises NotFound if it has none of its own."""
        return await self._client._do(access.GetQuota(subject=QuotaSubject.parse(subject)))

    async def set_quota(
        self,
        subject: str,
        *,
        connections_max: int | None = None,
        requests_per_s: int | None = None,
        publish_bytes_per_s: int | None = None,
        fetch_bytes_per_s: int | None = None,
        stored_bytes_max: int | None = None,
        expected: str = "",
    ) -> Quota:
        """Change limits of a subject, which gets a quota if it has none; in force at once. 0 is no limit, and limits
        that are not given stay as they are.

        connections_max     of principals only
        fetch_bytes_per_s   of fetches, and of deliveries to consumers
        stored_bytes_max    of the topics of a namespace, or of those that a principal created
        expected            raise Conflict if the quota does not have this version any more
        """
        named = QuotaSubject.parse(subject)
        given = (connections_max, requests_per_s, publish_bytes_per_s, fetch_bytes_per_s, stored_bytes_max)
        changes = {name: value for name, value in zip(LIMIT_NAMES, given, strict=True) if value is not None}
        for name, value in changes.items():
            check_count(name, value, 0, LIMIT_MAX)
        return await self._client._do(access.SetQuota(subject=named, changes=changes, expected=expected))

    async def delete_quota(self, subject: str, *, expected: str = "") -> None:
        """Delete a quota. Callers that wait for its rates go on at once."""
        await self._client._do(access.DeleteQuota(subject=QuotaSubject.parse(subject), expected=expected))


def _words(what: str, words: Iterable[str]) -> list[str]:
    if isinstance(words, str):
        raise Invalid(f"{what} is a list, not the text {words!r}: write [{words!r}]")
    return list(words)
