"""The pipeline of examples/pipelines and docs/spark/pipelines.md does what it says, with typed rows."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_broker import Broker

import pydanube
from pydanube.spark.pipelines import RunOptions, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipelines"
ITEMS = ("espresso", "cortado", "tea")


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "spark" / "pipelines.md").read_text()
    shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    text = (EXAMPLE / "orders.yaml").read_text()
    assert text.partition("\n\n")[2] in shown


def publish(client: pydanube.BlockingClient) -> None:
    client.create_topic("/default/orders", partitions=2)
    client.schemas.register("orders", (EXAMPLE / "order.schema.json").read_text(), format="json")
    client.schemas.bind("/default/orders", "orders", policy="warn")  # broken messages get in
    first = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    with client.producer("/default/orders") as producer:
        for number in range(240):
            at = first + timedelta(seconds=number) - timedelta(days=60 if number % 20 == 1 else 0)
            cents = 0 if number % 20 == 2 else 100 + number
            order = {"id": number, "item": ITEMS[number % 3], "cents": cents, "at": at.isoformat()}
            payload = json.dumps(order).encode() if number % 20 else b"{broken"
            producer.send_nowait(payload, key=f"table-{number % 9}", attributes={"n": str(number)})
        producer.flush()


def test_the_example_sorts_orders_into_table_totals_and_dead_letters(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    publish(client)
    options = RunOptions(servers=broker.url, spark=spark, once=True, variables={"DATA": str(tmp_path)})
    status = run(EXAMPLE / "orders.yaml", options)

    good = [number for number in range(240) if number % 20 > 2]
    rows = DeltaTable(str(tmp_path / "orders")).to_pyarrow_table(columns=["id", "item", "price"]).to_pylist()
    assert sorted(row["id"] for row in rows) == good
    assert all(row["item"] == ITEMS[row["id"] % 3] and row["price"] * 100 == 100 + row["id"] for row in rows)
    letters = {topic: list(client.dead_letters(topic)) for topic in ("/default/orders-dlq", "/default/orders-late")}
    broken, late = letters.values()
    assert sorted(int(one.original_attributes["n"]) for one in broken) == list(range(0, 240, 20))
    assert {one.message.payload for one in broken} == {b"{broken"}
    assert all(one.reason.startswith("cannot be decoded: ") for one in broken)
    assert sorted(int(one.original_attributes["n"]) for one in late) == list(range(1, 240, 20))
    assert status.failed == {"orders": {"decodable": 12, "paid": 12, "in_time": 12}}

    turnover: dict[tuple[int, str], int] = defaultdict(int)
    for number in good:
        turnover[number // 60, ITEMS[number % 3]] += 100 + number
    sums: Counter[tuple[int, str]] = Counter()
    with client.reader("/default/orders-per-minute", start="earliest", end="latest") as reader:
        totals = [(message.key, json.loads(message.payload)) for message in reader]
    minutes = {row["minute"] for _, row in totals}
    for key, row in totals:
        assert key == row["item"]
        sums[sorted(minutes).index(row["minute"]), row["item"]] += round(row["turnover"] * 100)
    closed = {place: cents for place, cents in turnover.items() if place[0] < 2}
    assert sums == closed, "windows whose end is a minute behind the newest order are closed"
