"""The official client while its broker is killed and started again: the application sees a pause, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient
from ports import free_port

pytestmark = pytest.mark.process


def run_with_kills(command: list[str], directory: Path, kills: int, messages: int, partitions: int) -> dict[str, Any]:
    with BrokerProcess(directory / "data", grpc_port=free_port()) as broker:
        official = OfficialClient(command, f"http://127.0.0.1:{broker.grpc_port}")
        with official.start(
            "restart.run", topic="/default/orders", kills=kills, messages=messages, partitions=partitions
        ) as scenario:
            for _ in range(kills):
                scenario.wait_for("running")
                scenario.tell("go on")
                broker.kill()
                broker.start()
            scenario.wait_for("running")
            scenario.tell("go on")
            result: dict[str, Any] = scenario.result()
    return result


def check(result: dict[str, Any], partitions: int) -> None:
    """Every message whose send was answered came, and those of one sender in order."""
    assert result["errors"] == []
    sent = set(result["sent"])
    assert len(sent) == len(result["sent"])
    for received in result["received"]:
        assert sent <= set(received)
        if partitions:
            continue
        for sender in range(4):
            numbers = [int(one.partition("-")[2]) for one in received if one.startswith(f"{sender}-")]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("partitions", [pytest.param(0, marks=pytest.mark.exhaustive), 3])
def test_over_kill_9_nothing_acked_is_missing(client_command: list[str], tmp_path: Path, partitions: int) -> None:
    result = run_with_kills(client_command, tmp_path, 2, 150, partitions)
    check(result, partitions)


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [0, 3])
def test_over_many_kills_nothing_acked_is_missing(client_command: list[str], tmp_path: Path, partitions: int) -> None:
    result = run_with_kills(client_command, tmp_path, 40, 400, partitions)
    check(result, partitions)
    print(f"{len(result['sent'])} sent, repeated by subscription: {result['repeated']}")
