"""A landing is killed with -9 before and after the table's commit: every message is in the table once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import table_kill_driver
from brokers import BrokerProcess
from kill_driver import SINK_COMMITTED, TASKS_DONE
from spark_broker import messages, until
from spark_killing import SOURCE, Driver, Scene

from pydanube.spark.tables.options import Format, TableOptions
from pydanube.spark.tables.orphans import find_orphans
from pydanube.spark.tables.table_formats import open_table

pytestmark = [pytest.mark.spark_kill, pytest.mark.process, pytest.mark.timeout(1800)]


class TableScene(Scene):
    """A topic that is being filled, and a landing of it."""

    kind: Format = "delta"

    def start_landing(self, kill_at: str = "") -> Driver:
        servers = self.broker.url.removeprefix("danube://")
        program = (table_kill_driver.__file__, self.kind, servers, SOURCE, self.path, f"{self._directory}/checkpoint")
        driver = Driver(self.broker, self._directory, "", kill_at, program)
        self._lives.append(driver)
        return driver

    @property
    def path(self) -> str:
        return f"{self._directory}/lake/orders"

    @property
    def table(self):
        return open_table(TableOptions.parse(self.kind, {"path": self.path}))

    def rows(self) -> Counter[tuple[int, str, int]]:
        from test_table_formats import stored

        return Counter((row["payload"], row["partition"], row["offset"]) for row in stored(self.table).to_pylist())

    def published(self) -> Counter[tuple[int, str, int]]:
        with self._client() as client:
            every = messages(client, SOURCE).values()
        return Counter((one.payload, one.partition, one.offset) for each in every for one in each)


@pytest.fixture(params=["delta", "iceberg"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableScene]:
    with BrokerProcess(tmp_path / "data") as broker:
        scene = TableScene(broker, tmp_path)
        scene.kind = request.param
        try:
            yield scene
        finally:
            scene.end()


def test_the_driver_is_killed_on_both_sides_of_the_tables_commit(scene: TableScene) -> None:
    for step in (TASKS_DONE, SINK_COMMITTED):
        scene.publish(100)
        driver = scene.start_landing(kill_at=step)
        driver.until_committed()  # it has recovered from the death before
        done = driver.committed
        driver.arm()
        scene.publish(400)
        driver.until_dead()
        assert driver.committed == done, "Spark does not know the batch"
        batches = [one.batch_id + 1 for one in scene.table.records()]
        assert batches == [done + (step == SINK_COMMITTED)], "and the table knows it after its own commit"
    scene.publish(100)
    driver = scene.start_landing()
    driver.until_committed()
    until(lambda: not driver.alive or sum(scene.rows().values()) >= scene._published, "it catches up", driver.log)
    assert driver.alive, driver.log()
    driver.end()
    assert scene.rows() == scene.published()
    assert len(scene.published()) == scene._published == 1100
    left = find_orphans(scene.table)
    scene.start_landing().until_committed(0)
    until(lambda: not find_orphans(scene.table), f"{len(left)} orphans are removed at the start")
    assert scene.rows() == scene.published()
