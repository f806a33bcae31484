"""Finishes an upgrade: raises the feature level of the metadata once every living broker knows the new one.

Invariants
    the level is raised by one transaction, which fails if a broker joined since the brokers were listed
    it is never raised to a level that a living broker does not know
"""

from __future__ import annotations

from typing import Final

from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit_operations import note_detail
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.metadata.levels import LEVEL_KEY, parse_level, put_level
from pydanube.metadata.store import Compare, MetadataStore, list_all
from pydanube.model.cluster import BrokerLevel, BrokerSession, UpgradeDescription
from pydanube.model.errors import Refused, Unavailable
from pydanube.runtime.telemetry import get_logger
from pydanube.version import __version__

from .membership import Membership
from .node_records import SESSIONS, unpack_session

log = get_logger(__name__)

ATTEMPTS: Final = 10
"""The transaction fails when a broker joins meanwhile."""


class Upgrade:
    """How far the upgrade of the cluster is, and its end."""

    def __init__(
        self, registry: Registry, membership: Membership, authorizer: Authorizer, store: MetadataStore
    ) -> None:
        self._level = registry.level
        self._membership = membership
        self._authorizer = authorizer
        self._store = store

    def describe(self, principal: Principal) -> UpgradeDescription:
        """Return the level in force, and what each living broker knows."""
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return self._describe(self._level.in_force, self._membership.sessions())

    async def finish(self, principal: Principal) -> UpgradeDescription:
        """Raise the level to the newest one that all living brokers know. If it is in force, nothing is changed.

        Raises Refused if that is in force already and a broker knows a newer one: names the brokers that do not.
        Cancelled or failed with Unavailable: the level may have been raised.
        """
        self._authorizer.check(principal, Action.ADMINISTER, BROKER)
        for _ in range(ATTEMPTS):
            found = await self._store.get(LEVEL_KEY)
            sessions = [unpack_session(one.key, one.value) async for one in list_all(self._store, SESSIONS)]
            about = self._describe(parse_level(None if found is None else found.value), sessions)
            note_detail(f"feature level {about.level} to {about.highest}")
            if about.highest <= about.level:
                if about.behind:
                    raise _held_back(about)
                return about
            unchanged = Compare.mod_revision(LEVEL_KEY, 0 if found is None else found.mod_revision)
            write = put_level(about.highest)
            result = await self._store.transact([unchanged, *self._membership.alive()], [write])
            if result.succeeded:
                self._level.keys.learn(LEVEL_KEY, write.value, result.revision)
                log.info("level.raised", level=about.highest, former=about.level)
                return self._describe(about.highest, sessions)
        raise Unavailable(f"the feature level was not raised: brokers joined {ATTEMPTS} times meanwhile; try again")

    def _describe(self, level: int, sessions: list[BrokerSession]) -> UpgradeDescription:
        own = self._membership.session.name
        known = {one.name: BrokerLevel(one.name, one.level, one.version) for one in sessions}
        known[own] = BrokerLevel(own, self._level.levels.newest, __version__)
        highest = min(one.level for one in known.values())
        return UpgradeDescription(level, max(level, highest), [one for _, one in sorted(known.items())])


def _held_back(about: UpgradeDescription) -> Refused:
    known = ", ".join(f"broker {one.name!r} ({one.version or 'no version'}) knows {one.level}" for one in about.behind)
    return Refused(
        f"the feature level stays {about.level}: {known}; upgrade or stop what is older, and finish the upgrade again"
    )
