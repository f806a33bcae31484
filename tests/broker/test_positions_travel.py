"""What subscriptions of a `durable` topic acked goes to the object store, where another broker finds it."""

from __future__ import annotations

from pathlib import Path

from broker_harness import BrokerClient
from cluster_harness import MovingBroker, moving_cluster

from pydanube.model.topics import AckLevel
from pydanube.storage.segments.broker_positions import PositionParts
from pydanube.storage.segments.manifest import known_positions

CLUSTER = "cluster"


def parts_of(broker: MovingBroker) -> PositionParts:
    assert broker.broker._tiers is not None and broker.broker._tiers.positions is not None
    return broker.broker._tiers.positions


async def consume(client: BrokerClient, start: int, end: int) -> None:
    """Publish messages up to `end`, and ack those from `start` on."""
    await client.publish(await client.producer(), [b"x"] * (end - start))
    collected = await client.subscribe(consumer=f"c{start}")
    await collected.wait_for(end - start)
    await collected.ack((start, end))
    collected.consumer.close()


async def test_positions_are_written_with_uploads_and_the_newest_of_all_brokers_is_read(tmp_path: Path) -> None:
    async with moving_cluster(tmp_path, "a", "b") as cluster:
        topic_id = await cluster.create(ack_level=AckLevel.DURABLE)
        owner = next(iter(cluster.owners().values()))
        assert not await known_positions(cluster.objects, CLUSTER)
        await consume(owner.client, 0, 3)
        assert await parts_of(owner).write_if_due()
        await consume(owner.client, 3, 5)
        assert not await parts_of(owner).write_if_due(), "the interval has not passed"
        assert owner.broker._tiers is not None
        assert await owner.broker._tiers.upload([(topic_id, 0)])
        assert await owner.broker._tiers._write_positions(uploaded=True) is None
        for broker in cluster.brokers.values():
            if broker is not owner:
                await parts_of(broker).write()  # it has nothing newer
        found = (await known_positions(cluster.objects, CLUSTER))[topic_id, 0]
        assert (found.end_offset, [one.position for one in found.cursors]) == (5, [5])
