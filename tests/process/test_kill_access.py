"""kill -9 amid changes of roles, bindings and keys: what was acked is there after a restart, and nothing by half."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube
from exhaustive import several
from pydanube.client import Client
from pydanube.model.errors import Unauthenticated

pytestmark = pytest.mark.process

ACTIONS = ["produce", "consume", "read", "describe", "create", "delete", "administer"]
ROLES = 4
ACKED_BEFORE_KILL = 40


@dataclass
class Known:
    """What one changer was told about its role, binding and keys."""

    acked: tuple[str, ...] | None = None
    asked: tuple[str, ...] | None = None
    is_bound: bool | None = False
    """None: a change was not answered."""
    keys: dict[str, str] = field(default_factory=dict)
    """Of keys that were made and not revoked: id and secret."""
    revoked: dict[str, str] = field(default_factory=dict)
    revoking: str = ""


async def change(client: Client, number: int, known: Known, rng: random.Random, count: list[int]) -> None:
    """Change a role, bind it and take the binding back, and make and revoke keys, until the broker is gone."""
    name, access = f"role-{number}", client.access
    while True:
        known.asked = tuple(one for one in ACTIONS if rng.random() < 0.5) or ("read",)
        if known.acked is None:
            await access.create_role(name, known.asked)
        else:
            await access.change_role(name, known.asked)
        known.acked = known.asked
        was_bound, known.is_bound = known.is_bound, None
        if was_bound:
            await access.delete_binding(name)
        else:
            await access.create_binding(f"user:u{number}", [name], "/default", binding_id=name)
        known.is_bound = not was_bound
        made = await access.create_key(f"user:u{number}")
        known.keys[made.key.id] = made.secret
        if len(known.keys) > 2:
            known.revoking = min(known.keys)
            await access.revoke_key(known.revoking)
            known.revoked[known.revoking] = known.keys.pop(known.revoking)
            known.revoking = ""
        count[0] += 1


async def change_until_killed(broker: BrokerProcess, key: str, seed: int) -> list[Known]:
    everything, count = [Known() for _ in range(ROLES)], [0]

    async with pydanube.connect(broker.url, token=key, timeout=120) as client:
        changers = [
            asyncio.create_task(change(client, number, known, random.Random(seed + number), count))
            for number, known in enumerate(everything)
        ]
        async with asyncio.timeout(120):
            while count[0] < ACKED_BEFORE_KILL:  # noqa: ASYNC110 - the changers count
                await asyncio.sleep(0)
        broker.kill()
        for one in changers:
            one.cancel()
        ended = await asyncio.gather(*changers, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    return everything


@pytest.mark.parametrize("seed", several([1], [1, 20, 300]))
async def test_acked_changes_survive_a_kill_and_none_is_made_by_half(tmp_path: Path, seed: int) -> None:
    with BrokerProcess(tmp_path / "data", environment={"DANUBE_AUTH_ENABLED": "true"}) as broker:
        admin = (tmp_path / "data" / "admin-key").read_text().strip()
        everything = await change_until_killed(broker, admin, seed)
        broker.start()
        async with pydanube.connect(broker.url, token=admin) as client:
            roles = {one.name: one.actions for one in await client.access.roles()}
            bindings = {one.id: one.roles for one in await client.access.bindings()}
            keys = {one.id for one in await client.access.keys()}
            for number, known in enumerate(everything):
                name = f"role-{number}"
                assert roles[name] in (known.acked, known.asked)
                if known.is_bound is not None:
                    assert (name in bindings) == known.is_bound
                assert bindings.get(name, (name,)) == (name,)
                assert known.keys.keys() - {known.revoking} <= keys
                assert not known.revoked.keys() & keys
                allowed = await client.access.can("produce", "/default/orders", principal=f"user:u{number}")
                assert allowed.allowed == (name in bindings and "produce" in roles[name])
        await check_keys_at_the_listener(broker.url, everything)


async def check_keys_at_the_listener(url: str, everything: list[Known]) -> None:
    """Keys that were made work, and those that were revoked do not: of these a few, since failures are slowed down."""
    for known in everything:
        for secret in (one for key_id, one in known.keys.items() if key_id != known.revoking):
            async with pydanube.connect(url, token=secret) as client:
                await client.access.whoami()
    for secret in [one for known in everything for one in known.revoked.values()][-4:]:
        with pytest.raises(Unauthenticated):
            async with pydanube.connect(url, token=secret):
                pass
