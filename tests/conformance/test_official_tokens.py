"""The official Danube client with a token, against a broker that asks for one."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient
from tls_files import Authority

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


@pytest.mark.exhaustive
def test_the_official_client_with_token_and_tls(client_command: list[str], tmp_path: Path) -> None:
    """The token by itself, from a function, and beside a client certificate; neither is enough without the other."""
    if len(client_command) == 1:
        pytest.skip("the scenarios of other clients know no TLS")
    authority, strange = Authority(tmp_path / "authority"), Authority(tmp_path / "strange")
    pair, mine = authority.issue("broker"), authority.issue("client", "client.example")
    environment = {
        "DANUBE_AUTH_ENABLED": "true",
        "DANUBE_TLS_CERT_FILE": str(pair.cert_file),
        "DANUBE_TLS_KEY_FILE": str(pair.key_file),
    }
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        official = OfficialClient(client_command, f"https://127.0.0.1:{broker.grpc_port}")
        key_file = tmp_path / "data" / "admin-key"
        key, ca = key_file.read_text().strip(), str(authority.ca_file)
        (tmp_path / "token").write_text(key)
        mutual = [ca, str(mine.cert_file), str(mine.key_file)]
        ways = [{"token": key, "tls": [ca]}, {"token_file": str(tmp_path / "token"), "tls": [ca]}]
        ways.append({"token": key, "tls": mutual})
        for number, way in enumerate(ways):
            given = {"topic": f"/default/tls-{number}", "payloads": ["one", "two"], "reliable": True}
            received = official.run("round_trip.publish_and_receive", **way, **given)
            assert [payload for payload, *_ in received] == ["one", "two"]
        wrong = f"dnb_0123456789abcdef_{'a' * 43}"
        for way in ({"tls": [ca]}, {"token": wrong, "tls": [ca]}, {"token": key, "tls": [str(strange.ca_file)]}):
            with pytest.raises(AssertionError, match="has ended"):
                official.run("round_trip.publish_and_receive", **way, **{**given, "topic": "/default/refused"})
        assert key not in broker.log.read_text()
