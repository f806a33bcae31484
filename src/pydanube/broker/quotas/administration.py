"""Administration of quotas.

```
 change and delete     ADMINISTER on the cluster, also for the quota of a namespace: a tenant must not raise its own
 see                   DESCRIBE on the cluster; everybody its own and that of all of its type, and those of namespaces
                       that it may describe
```

In the metadata store, values are MessagePack maps, as in broker.registry:

```
/security/quotas/<type>:<name>       QuotaRecord      type: user, service_account or namespace
```
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import msgspec

from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.administration import PAGE_MAX
from pydanube.broker.security.audit_operations import note_detail
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.metadata.following import Follower
from pydanube.metadata.packing import version_of
from pydanube.metadata.record_table import RecordTable
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import Full, Invalid, NotFound
from pydanube.model.limits import QUOTAS_MAX
from pydanube.model.quotas import LIMIT_NAMES, Quota, QuotaLimits, QuotaSubject, QuotaUsage
from pydanube.operations.access import QuotasListed
from pydanube.runtime.clock import Clock

from .throttle import Throttle


class Quotas:
    """Quotas, as callers see and change them. A part of the facade."""

    def __init__(
        self, throttle: Throttle, registry: Registry, authorizer: Authorizer, store: MetadataStore, clock: Clock
    ) -> None:
        self._throttle = throttle
        self._registry = registry
        self._authorizer = authorizer
        self._clock = clock
        self._quotas: dict[QuotaSubject, QuotaRecord] = {}
        keys = QUOTAS, self._take, quota_key, subject_of_key
        self._table = RecordTable(store, clock, QuotaRecord, *keys, lambda subject: f"the quota of {subject}")

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        self._table.follow(follower)

    def list(self, principal: Principal, after: str = "", limit: int = PAGE_MAX) -> QuotasListed:
        """Return a page of the quotas that the caller may see, each with what is used of it now."""
        if not 0 < limit <= PAGE_MAX:
            raise Invalid(f"limit={limit} is out of range: use 1 to {PAGE_MAX}")
        seen = sorted((str(one), one) for one in self._quotas if self._shows(principal, one))
        start = bisect_right(seen, after, key=lambda one: one[0]) if after else 0
        page = seen[start : start + limit]
        found = [self._quota(one, self._quotas[one]) for _, one in page]
        return QuotasListed(found, page[-1][0] if start + limit < len(seen) else "")

    async def get(self, principal: Principal, subject: QuotaSubject) -> Quota:
        """Return a quota that the caller may see. Raises NotFound if the subject has none of its own."""
        if not self._shows(principal, subject):
            self._authorizer.check(principal, Action.DESCRIBE, str(subject) if subject.is_namespace else BROKER)
        await self._table.ask(subject)
        record = self._quotas.get(subject)
        if record is None:
            raise _no_quota(subject)
        return self._quota(subject, record)

    async def set(
        self, principal: Principal, subject: QuotaSubject, changes: Mapping[str, int], expected: str = ""
    ) -> Quota:
        """Change limits of a quota, which is made if there is none; in force at once. Other limits stay as they are.

        Raises Conflict if the quota does not have the version `expected`; empty: any.
        """
        named = ", ".join(f"{name}={limit}" for name, limit in changes.items() if name in LIMIT_NAMES)
        note_detail(f"quota of {subject}: {named}")
        self._authorizer.check(principal, Action.ADMINISTER, BROKER)
        if unknown := [name for name in changes if name not in LIMIT_NAMES]:
            raise Invalid(f"{unknown[0]!r} is no limit of a quota: use {', '.join(LIMIT_NAMES)}")
        if subject.is_namespace:
            self._registry.namespace(subject.name)

        def change(stored: QuotaRecord | None) -> QuotaRecord:
            if stored is None and len(self._quotas) >= QUOTAS_MAX:
                raise Full(f"there are {QUOTAS_MAX} quotas, which is the most: use those of all principals of a type")
            record = msgspec.structs.replace(stored or QuotaRecord(created_at=self._clock.now_us()), **changes)
            record.limits().check(subject)
            return record

        return self._quota(subject, (await self._table.set(subject, change, expected)).record)

    async def delete(self, principal: Principal, subject: QuotaSubject, expected: str = "") -> None:
        """Delete a quota; those that wait for its rates go on at once. `expected` as in `set`."""
        note_detail(f"quota of {subject}")
        self._authorizer.check(principal, Action.ADMINISTER, BROKER)
        await self._table.delete(subject, expected, _no_quota(subject))

    def _take(self, subject: QuotaSubject, record: QuotaRecord | None) -> None:
        if record is None:
            self._quotas.pop(subject, None)
        else:
            self._quotas[subject] = record
        self._throttle.set_quota(subject, None if record is None else record.limits())

    def _quota(self, subject: QuotaSubject, record: QuotaRecord) -> Quota:
        return record.quota(subject, self._throttle.usage(subject))

    def _shows(self, principal: Principal, subject: QuotaSubject) -> bool:
        if self._authorizer.allows(principal, Action.DESCRIBE, BROKER):
            return True
        if subject.is_namespace:
            return self._authorizer.allows(principal, Action.DESCRIBE, str(subject))
        return str(subject) == principal.id or (subject.is_default and subject.type == principal.type)


def _no_quota(subject: QuotaSubject) -> NotFound:
    return NotFound(f"{subject} has no quota of its own: 'danube auth quotas list' shows those that there are")


QUOTAS: Final = "/security/quotas/"


class QuotaRecord(msgspec.Struct, omit_defaults=True):
    """The limits of one subject; 0 is none."""

    connections_max: int = 0
    requests_per_s: int = 0
    publish_bytes_per_s: int = 0
    fetch_bytes_per_s: int = 0
    stored_bytes_max: int = 0
    created_at: int = 0

    def limits(self) -> QuotaLimits:
        return QuotaLimits(**{name: getattr(self, name) for name in LIMIT_NAMES})

    def quota(self, subject: QuotaSubject, used: QuotaUsage) -> Quota:
        return Quota(subject, **asdict(self.limits()), version=version_of(self), used=used)


def quota_key(subject: QuotaSubject) -> str:
    """Return the key of a quota. A name may contain `/`: nothing is below a quota."""
    return f"{QUOTAS}{subject.type}:{subject.name}"


def subject_of_key(key: str) -> QuotaSubject:
    kind, _, name = key.removeprefix(QUOTAS).partition(":")
    return QuotaSubject(kind, name)
