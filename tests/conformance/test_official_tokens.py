"""The official Danube client with a token, against a broker that asks for one."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient

from pydanube.runtime.clock import SystemClock

pytestmark = pytest.mark.process

SECRET = "s3cret-of-the-cluster-0123456789abcdef"


def test_the_official_client_publishes_and_receives_with_its_token_and_not_without(
    client_command: list[str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    environment = {"DANUBE_AUTH_ENABLED": "true", "DANUBE_AUTH_SECRET_FILE": str(secret)}
    claims = {"iss": "danube", "sub": "x", "principal_type": "user", "principal_name": "admin"}
    ends = SystemClock().now_us() // 1_000_000 + 600
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        official = OfficialClient(client_command, f"http://127.0.0.1:{broker.grpc_port}")
        key = (tmp_path / "data" / "admin-key").read_text().strip()
        for number, token in enumerate((jwt.encode({**claims, "exp": ends}, SECRET, "HS256"), key)):
            given = {"topic": f"/default/tokens-{number}", "payloads": ["one", "two"], "reliable": True}
            received = official.run("round_trip.publish_and_receive", token=token, **given)
            assert [payload for payload, *_ in received] == ["one", "two"]
        with pytest.raises(AssertionError, match="has ended"):
            official.run("round_trip.publish_and_receive", **{**given, "topic": "/default/other"})
        log = broker.log.read_text()
        assert key not in log and SECRET not in log
