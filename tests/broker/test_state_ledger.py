"""The state ledger of a partition beside a broker that closes."""

import asyncio

from broker_harness import BrokerClient, open_client, open_topic

from pydanube.runtime.tasks import Tasks


async def test_superseded_ledgers_stay_listed_when_the_broker_closes_before_they_are_dropped(tmp_path):
    async with open_topic(tmp_path) as client:
        await client.publish(await client.producer(), [b"x"] * 10)
        await acked(client.broker, client)
    async with open_client(tmp_path) as client:
        state = (await client.broker._partitions.get(client.topic, 0)).state
        former, failures = list(state._former), []
        assert former
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        state._tasks = Tasks()
        await state._tasks.close()  # the broker closes while the new ledger is on its way to the disk
        synced = asyncio.get_running_loop().create_future()
        state._waiters.append(lambda error: synced.set_result(error))
        await state._open()
        assert await synced is None
        await asyncio.sleep(0)
        assert not failures
        listed = [ledger_id for ledger_id, _ in await state._ownership.ledgers()]
        assert set(former) <= set(listed)


async def acked(broker, client: BrokerClient) -> None:
    """Let a subscription ack something, so that the partition has a state ledger."""
    consumer = await client.subscribe()
    await consumer.wait_for(10)
    done = asyncio.get_running_loop().create_future()
    consumer.consumer.ack([(0, 5)], False, lambda error: done.set_result(error))
    assert await done is None
