"""What a broker says in its log when it starts with settings that are allowed and not safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokers import BrokerProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize("named", [False, True])
def test_a_default_super_user_is_warned_of_in_the_log(tmp_path: Path, named: bool) -> None:
    secret = {"DANUBE_AUTH_ENABLED": "true", "DANUBE_AUTH_SECRET": "s" * 64}
    environment = {**secret, **({"DANUBE_AUTH_SUPER_USERS": "user:admin"} if named else {})}
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        lines = [one for one in broker.log.read_text().splitlines() if "auth.super_user_not_named" in one]
    assert len(lines) == (not named)
    assert all("user:admin" in one and "set auth.super_users" in one for one in lines)
