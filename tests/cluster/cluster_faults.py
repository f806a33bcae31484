"""The faults that a cluster must survive, one by one, and plans of them from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable

from cluster_load import ClusterLoad
from cluster_world import SESSION_S, ClusterBroker, ClusterWorld

ACKED_BETWEEN = 100
"""Acks under load before a fault and after it."""


def chosen_seed() -> int:
    """Return the seed of this run and print it: DANUBE_SEED repeats one."""
    seed = int(os.environ.get("DANUBE_SEED", random.randrange(2**32)))
    print(f"DANUBE_SEED={seed}")
    return seed


class Faults:
    """Breaks a cluster under load. Each method makes one fault and repairs it.

    `away_s` is how long something is away that comes back by itself.
    """

    def __init__(self, world: ClusterWorld, load: ClusterLoad, chance: random.Random, away_s: float) -> None:
        self.world = world
        self.load = load
        self.chance = chance
        self.away_s = away_s

    def alike(self) -> Faults:
        """Return faults of the same cluster with chances of their own, whatever happens at the same time."""
        return Faults(self.world, self.load, random.Random(self.chance.random()), self.away_s)

    def some(self, count: int = 1) -> list[ClusterBroker]:
        return self.chance.sample(self.world.brokers, count)

    async def kill(self, brokers: list[ClusterBroker]) -> None:
        for broker in brokers:
            broker.kill()
        await self.wait(self.chance.choice([0.0, 0.5, self.away_s]))
        await self.world.start_brokers(brokers)

    async def kill_one(self) -> None:
        await self.kill(self.some())

    async def kill_two(self) -> None:
        await self.kill(self.some(2))

    async def kill_all(self) -> None:
        await self.kill(self.world.brokers)

    async def restart_one(self) -> None:
        """Stop a broker in order and start it again."""
        (broker,) = self.some()
        assert await asyncio.to_thread(broker.stop) == 0
        await broker.begin()

    async def freeze_one(self) -> None:
        """SIGSTOP for longer than a session: others learn that it is gone, and it does not know."""
        (broker,) = self.some()
        broker.freeze()
        try:
            await self.wait(self.away_s)
        finally:
            broker.thaw()

    async def freeze_all(self) -> None:
        for broker in self.world.brokers:
            broker.freeze()
        await self.wait(self.away_s)
        for broker in self.world.brokers:
            broker.thaw()

    async def kill_etcd_leader(self) -> None:
        leader = await asyncio.to_thread(self.world.etcd.leader)
        leader.kill()
        await self.wait(self.chance.choice([0.0, self.away_s]))
        await asyncio.to_thread(self.world.heal_etcd)

    async def etcd_away(self) -> None:
        """All members are frozen; nothing can renew a session."""
        for member in self.world.etcd.members:
            member.freeze()
        await self.wait(self.away_s)
        await asyncio.to_thread(self.world.heal_etcd)

    async def etcd_killed(self) -> None:
        for member in self.world.etcd.members:
            member.kill()
        await self.wait(self.away_s)
        await asyncio.to_thread(self.world.heal_etcd)

    async def compact(self) -> None:
        """Forget the history while no watcher hears anything, so that each of them comes too late."""
        for broker in self.world.brokers:
            for proxy in broker.to_etcd:
                proxy.freeze(to_server=True)
        await self.write_noise(20)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.world.compact)
        for broker in self.world.brokers:
            for proxy in broker.to_etcd:
                proxy.thaw()
                proxy.cut()

    async def write_noise(self, count: int) -> None:
        """Write keys of another application, so that revisions rise."""
        member = self.world.etcd.members[0]
        for _ in range(count):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(member.post, "kv/put", {"key": "L290aGVy", "value": ""})

    async def cut_from_etcd(self) -> None:
        """One broker reaches everybody but etcd."""
        (broker,) = self.some()
        for proxy in broker.to_etcd:
            proxy.freeze()
        await self.wait(self.away_s)
        for proxy in broker.to_etcd:
            proxy.thaw()

    async def deaf_to_etcd(self) -> None:
        """Etcd hears one broker, which hears nothing: its keep-alives count, and it does not know."""
        (broker,) = self.some()
        for proxy in broker.to_etcd:
            proxy.freeze(to_server=True)
        await self.wait(self.away_s)
        for proxy in broker.to_etcd:
            proxy.thaw()

    async def cut_from_brokers(self) -> None:
        """One broker reaches etcd and clients, and no other broker."""
        (broker,) = self.some()
        broker.inside.freeze()
        for other in self.world.brokers:
            other.inside.ban(broker.name)
        await self.wait(self.away_s)
        for other in self.world.brokers:
            other.inside.thaw()

    async def cut_from_clients(self) -> None:
        (broker,) = self.some()
        broker.outside.freeze(to_server=self.chance.random() < 0.5)
        await self.wait(self.away_s / 2)
        broker.outside.thaw()
        broker.outside.cut()

    async def delay(self) -> None:
        """Every way takes longer for a while."""
        proxies = [proxy for broker in self.world.brokers for proxy in broker.proxies]
        for proxy in proxies:
            proxy.delay_s = self.chance.choice([0.0, 0.01, 0.05])
        await self.wait(self.away_s / 2)
        for proxy in proxies:
            proxy.delay_s = 0.0

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # how long the fault lasts; nothing is synchronised by it


Fault = Callable[[Faults], Awaitable[None]]

ALONE: dict[str, Fault] = {
    "kill one": Faults.kill_one,
    "kill two": Faults.kill_two,
    "kill all": Faults.kill_all,
    "restart one": Faults.restart_one,
    "freeze one": Faults.freeze_one,
    "freeze all": Faults.freeze_all,
    "kill etcd's leader": Faults.kill_etcd_leader,
    "etcd away": Faults.etcd_away,
    "etcd killed": Faults.etcd_killed,
    "compact": Faults.compact,
    "cut from etcd": Faults.cut_from_etcd,
    "deaf to etcd": Faults.deaf_to_etcd,
    "cut from brokers": Faults.cut_from_brokers,
    "cut from clients": Faults.cut_from_clients,
    "delay": Faults.delay,
}

SHORT_S = 1.5 * SESSION_S
"""Longer than a session, as short as a fault can be that ends one."""


async def one_after_the_other(faults: Faults, names: list[str]) -> None:
    """Make these faults under load; after each the cluster serves again."""
    for name in names:
        await faults.load.until_acked(ACKED_BETWEEN)
        print(f"fault: {name}")
        await ALONE[name](faults)
        await faults.world.heal()
        await faults.load.until_acked(ACKED_BETWEEN)


TOGETHER: list[list[str]] = [
    ["kill one", "freeze one", "restart one"],
    ["kill etcd's leader", "etcd away", "etcd killed", "compact"],
    ["cut from etcd", "deaf to etcd"],
    ["cut from brokers", "cut from clients", "delay"],
]
"""Faults that can happen at the same time: one of each group, since two of a group would repair each other."""


async def mixed(faults: Faults, rounds: int) -> None:
    """Make two or three faults at a time, from the seed."""
    for number in range(rounds):
        groups = faults.chance.sample(TOGETHER, faults.chance.randint(2, 3))
        names = [faults.chance.choice(group) for group in groups]
        print(f"round {number}: {', '.join(names)}")
        await asyncio.gather(*(ALONE[name](faults.alike()) for name in names))
        await faults.world.heal()
        await faults.load.until_acked(ACKED_BETWEEN)
