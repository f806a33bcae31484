"""What `danube storage usage` and /metrics tell about slices, and that an idle broker puts none."""

from pathlib import Path

from broker_harness import open_broker
from storage_harness import usage
from stored_harness import slices, stored_topic

from pydanube.core.access import ANONYMOUS
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore


async def test_puts_of_slices_are_counted_and_an_idle_broker_puts_none(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, clock=clock, crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        for n in range(5):
            await client.publish(producer, [b"%d" % n])
        status, _ = await usage(broker)
        assert status.slice_puts == len(await slices(objects)) >= 5
        assert status.slice_puts_per_s > 0
        assert status.slice_waiting_bytes == 0
        assert status.slice_unlisted_bytes > 0
        assert status.slice_unlisted_bytes_max == 4 << 30
        revision = await broker._store.revision()
        clock.advance(3600)
        after, _ = await usage(broker)
        assert (after.slice_puts, after.slice_puts_per_s) == (status.slice_puts, 0)
        assert await broker._store.revision() == revision
        families = {one.name: one.samples for one in broker.metric_families(ANONYMOUS)}
        assert families["danube_slice_puts_total"][0].value == status.slice_puts
        assert families["danube_slice_unlisted_bytes"][0].value == status.slice_unlisted_bytes
