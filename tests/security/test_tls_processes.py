"""TLS of brokers in processes of their own: signals, refused starts, command line, a cluster, the official client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import BrokerProcess
from danube_client import find_command
from etcd_cluster import etcd_cluster, missing_etcd
from tls_files import Authority, Pair

import pydanube
from pydanube.runtime.certificates import read_certificate
from waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def environment(pair: Pair, **others: str) -> dict[str, str]:
    return {"DANUBE_TLS_CERT_FILE": str(pair.cert_file), "DANUBE_TLS_KEY_FILE": str(pair.key_file), **others}


def shown_names(port: int, authority: Authority) -> tuple[str, ...]:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1") as stream:
        der = stream.getpeercert(binary_form=True)
        assert der is not None
        return read_certificate(der).names


def danube(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pydanube.cli", *arguments]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**plain, **variables})


async def test_sighup_reads_the_certificate_again_and_keeps_the_connections(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.issue("broker", "127.0.0.1", "old.example")
    interval = {"DANUBE_TLS_RELOAD_INTERVAL_S": "86400"}
    broker = BrokerProcess(tmp_path / "data", environment=environment(pair, **interval), before_start=os.setsid)
    with broker:
        url = f"danubes://127.0.0.1:{broker.port}"
        async with (
            pydanube.connect(url, tls_ca_file=authority.ca_file) as client,
            client.producer("/default/kept") as producer,
        ):
            await producer.send(b"before")
            authority.issue("broker", "127.0.0.1", "new.example")
            assert "DNS:old.example" in shown_names(broker.port, authority)
            os.kill(broker.pid, signal.SIGHUP)
            await until(lambda: "DNS:new.example" in shown_names(broker.port, authority))
            assert (await producer.send(b"after")).offset == 1


def test_a_start_that_is_refused_says_so_in_one_line(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("broker")
    pair.key_file.chmod(0o644)
    started = danube("serve", "--data-dir", str(tmp_path / "data"), "--port=0", "--http-port=0", **environment(pair))
    assert started.returncode == 1 and started.stdout == ""
    (line,) = [one for one in started.stderr.splitlines() if one.startswith("danube: ")]
    assert str(pair.key_file) in line and "chmod 600" in line
    assert not (tmp_path / "data").exists()


def test_authentication_without_tls_on_a_public_address_refuses_the_start(tmp_path: Path, authority: Authority) -> None:
    serve = ["serve", "--data-dir", str(tmp_path / "data"), "--host", "0.0.0.0", "--port=0", "--http-port=0"]
    half = environment(authority.issue("broker"), DANUBE_TLS_HTTP_ENABLED="false")
    for given in ({}, half):
        started = danube(*serve, "--no-grpc", "--no-admin", DANUBE_AUTH_ENABLED="true", **given)
        assert started.returncode == 1 and started.stdout == ""
        (line,) = [one for one in started.stderr.splitlines() if one.startswith("danube: ")]
        assert "auth.allow_plaintext" in line and "TLS" in line
        assert not (tmp_path / "data").exists()


def test_the_command_line_takes_the_options_before_and_after_the_command(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("broker")
    with BrokerProcess(tmp_path / "data", environment=environment(pair)) as broker:
        url, ca_file = f"danubes://127.0.0.1:{broker.port}", str(authority.ca_file)
        sent = danube("produce", "/default/cli", "-m", "hello", "--url", url, "--tls-ca-file", ca_file)
        assert sent.returncode == 0, sent.stderr
        read = ["consume", "/default/cli", "--from", "earliest", "--count", "1"]
        received = danube("--tls-ca-file", ca_file, "--url", url, *read)
        assert received.stdout.strip() == "hello", received.stderr
        assert danube(*read, "--url", url, DANUBE_TLS_CA_FILE=ca_file).stdout.strip() == "hello"
        assert danube(*read, "--url", url, "--tls-insecure-skip-verify").stdout.strip() == "hello"
        refused = danube(*read, "--url", url)
        assert refused.returncode == 1 and "--tls-ca-file" in refused.stderr.replace("tls_ca_file", "--tls-ca-file")


OFFICIAL = """
import asyncio, sys
from danube import DanubeClientBuilder, DispatchStrategy, SubType
async def main(url, ca, cert, key):
    client = await DanubeClientBuilder().service_url(url).with_mtls(ca, cert, key).build()
    producer = client.new_producer().with_topic("/default/official").with_name("p")
    producer = producer.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    consumer = (client.new_consumer().with_topic("/default/official").with_consumer_name("c")
        .with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build())
    await consumer.subscribe()
    queue = await consumer.receive()
    await producer.send(b"over TLS", None)
    message = await asyncio.wait_for(queue.get(), 30)
    print(message.payload.decode())
    await consumer.close()
    await client.close() if hasattr(client, "close") else None
asyncio.run(main(*sys.argv[1:]))
"""


def test_the_official_client_with_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    command = find_command()
    if command is None or len(command) == 1:
        pytest.skip("the official Danube client is not installed: run `make danube-client`")
    pair, mine = authority.issue("broker"), authority.issue("client", "client.example")
    required = {
        "DANUBE_TLS_CLIENT_CA_FILE": str(authority.ca_file),
        "DANUBE_TLS_CLIENT_CERTIFICATES": "required",
    }
    files = [str(one) for one in (authority.ca_file, mine.cert_file, mine.key_file)]
    with BrokerProcess(tmp_path / "data", environment=environment(pair, **required)) as broker:
        url = f"https://127.0.0.1:{broker.grpc_port}"
        done = subprocess.run(
            [command[0], "-c", OFFICIAL, url, *files], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.stdout.strip() == "over TLS", done.stderr[-3000:]


@pytest.mark.etcd
@pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd())
async def test_brokers_of_a_cluster_prove_to_each_other_who_they_are(tmp_path: Path, authority: Authority) -> None:
    """Both require client certificates: what one forwards to the other goes over mTLS."""
    pair = authority.issue("broker")
    tls = environment(pair, DANUBE_TLS_CLIENT_CA_FILE=str(authority.ca_file), DANUBE_TLS_CLIENT_CERTIFICATES="required")
    mine = {"tls_cert_file": pair.cert_file, "tls_key_file": pair.key_file, "tls_ca_file": authority.ca_file}
    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        shared = ["--metadata", etcd.url("tls"), "--storage-url", (tmp_path / "objects").as_uri()]
        brokers = [
            BrokerProcess(tmp_path / name, arguments=["--name", name, *shared], environment=tls) for name in ("a", "b")
        ]
        with brokers[0], brokers[1]:
            urls = [f"danubes://127.0.0.1:{one.port}" for one in brokers]
            async with asyncio.timeout(120), pydanube.connect(urls[0], **mine) as client:
                await client.create_topic("/default/both", partitions=4)
                async with client.producer("/default/both", partition_by="round-robin") as producer:
                    for number in range(40):
                        await producer.send(b"%d" % number)
                assert len({one.owner for one in await client.partitions("/default/both")}) == 2
                async with pydanube.connect(urls[1], **mine) as other:
                    statistics = await other.topic_statistics("/default/both")  # asks the owner of each partition
        assert "cannot be reached" not in "".join(one.log.read_text() for one in brokers)
    assert statistics is not None
