"""What bad input gets from `danube serve`: one line that names the thing and the remedy, exit code 1, nothing changed.

A living cluster `one` and the files of a stopped cluster `two` are there. Each test starts a broker that does not
belong there, and compares before and after: every key, revision and lease of the etcd, and every file and directory of
both clusters, byte by byte. The living broker is frozen meanwhile, so that whatever changes was changed by the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from cluster_world import danube
from etcd_cluster import EtcdCluster, EtcdMember, encoded, etcd_cluster, missing_etcd
from ports import free_ports

from pydanube.broker.cluster.node_records import session_key

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.xdist_group("cluster refusals"),
]
PORTS = ["--port=0", "--no-grpc", "--no-admin", "--no-http"]
ETCD = "etcd"
"""The directory of the etcd, which is asked for its keys instead."""
ALL_KEYS = {"key": encoded(b"\0"), "range_end": encoded(b"\0")}


@dataclass(frozen=True)
class Place:
    """A cluster `one` that lives, and the files of a cluster `two`."""

    directory: Path
    etcd: EtcdCluster
    living: BrokerProcess

    def url(self, prefix: str) -> str:
        return self.etcd.url(prefix)

    def objects(self, name: str) -> str:
        return (self.directory / f"{name}-objects").as_uri()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check that nothing changes. The living broker keeps its session meanwhile, which is long."""
        self.living.freeze()
        try:
            with unchanged(self.directory, self.etcd.members[0]):
                yield
        finally:
            self.living.thaw()


@contextlib.contextmanager
def unchanged(directory: Path, member: EtcdMember | None = None) -> Iterator[None]:
    """Check that nothing changes in the directory or in the etcd."""
    before = state(directory, member)
    while (settled := state(directory, member)) != before:  # what the broker that is frozen had sent may still arrive
        before = settled
    yield
    assert state(directory, member) == before


def state(directory: Path, member: EtcdMember | None) -> dict[str, Any]:
    """Return everything that a refused broker must not change."""
    paths = [path for path in sorted(directory.rglob("*")) if path.relative_to(directory).parts[0] != ETCD]
    files = {str(path): "directory" if path.is_dir() else content(path) for path in paths}
    if member is None:
        return files
    found, leases = member.post("kv/range", ALL_KEYS), member.post("lease/leases")
    etcd = {
        "keys": found.get("kvs", []),
        "revision": found["header"]["revision"],
        "leases": sorted(one["ID"] for one in leases.get("leases", [])),
    }
    return {**files, **etcd}


def content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def broker(place: Path, name: str, etcd: EtcdCluster, cluster: str) -> BrokerProcess:
    objects = (place / f"{cluster}-objects").as_uri()
    arguments = ["--name", name, "--metadata", etcd.url(cluster), "--storage-url", objects]
    environment = {"DANUBE_CLUSTER_SESSION_S": "120"}
    return BrokerProcess(place / f"{cluster}-{name}", arguments=arguments, environment=environment)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("refusals")
    with etcd_cluster(directory / ETCD, 1) as etcd:
        with broker(directory, "a", etcd, "two") as other:
            assert danube("topics", "create", "/default/theirs", "--url", other.url).returncode == 0
            assert other.stop() == 0
        with broker(directory, "a", etcd, "one") as living:
            yield Place(directory, etcd, living)


def refused(*arguments: str, **environment: str) -> str:
    """Start a broker that must not start, and return the line that it prints."""
    ended = danube("serve", *PORTS, *arguments, DANUBE_LOGGING_LEVEL="error", **environment)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert ended.stderr.startswith("danube: ") and ended.stderr.count("\n") == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_an_etcd_that_is_not_there_is_named(place: Place) -> None:
    (port,) = free_ports(1)
    url = f"etcd://127.0.0.1:{port}/one"
    for directory, objects in ((place.directory / "new", "new"), (place.directory / "two-a", "two")):
        options = ["--data-dir", str(directory), "--storage-url", place.objects(objects)]
        with place.unchanged():
            line = refused("--name", "a", "--metadata", url, *options, DANUBE_METADATA_TIMEOUT_MS="1000")
        assert url in line and "start etcd, or correct --metadata" in line


def test_an_etcd_that_wants_a_password_says_which_settings_have_it(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / ETCD, 1) as etcd:
        with broker(tmp_path, "a", etcd, "one") as known:
            assert known.stop() == 0
        (member,) = etcd.members
        member.post("auth/user/add", {"name": "root", "password": "secret"})
        member.post("auth/role/add", {"name": "root"})
        member.post("auth/user/grant", {"user": "root", "role": "root"})
        member.post("auth/enable")
        for name in ("a", "b"):
            with unchanged(tmp_path):  # who has no password can change no key
                line = refused(*arguments(tmp_path, name, etcd))
            assert etcd.url("one") in line
            assert "metadata.user" in line and "DANUBE_METADATA_PASSWORD" in line


def test_an_etcd_that_is_out_of_space_says_what_to_do(tmp_path: Path) -> None:
    """To a broker that is new there, to one that was there before, and to the first of a new cluster."""
    quota = 4 * 1024 * 1024
    with etcd_cluster(tmp_path / ETCD, 1, flags=["--quota-backend-bytes", str(quota)]) as etcd:
        with broker(tmp_path, "a", etcd, "one") as known:
            assert known.stop() == 0
        (member,) = etcd.members
        fill(member, 3 * quota)
        for name, cluster in (("b", "one"), ("a", "one"), ("a", "three")):
            with unchanged(tmp_path, member):
                line = refused(*arguments(tmp_path, name, etcd, cluster))
            assert etcd.url(cluster) in line
            assert "out of space" in line and "alarm disarm" in line


def arguments(directory: Path, name: str, etcd: EtcdCluster, cluster: str = "one") -> list[str]:
    """Return the arguments of a broker of this cluster."""
    started = broker(directory, name, etcd, cluster)
    return ["--data-dir", str(started.directory), *started.arguments]


def fill(member: EtcdMember, size: int) -> None:
    for number in range(size // 500_000):
        try:
            member.post("kv/put", {"key": encoded(b"/other/%d" % number), "value": encoded(b"x" * 500_000)})
        except OSError:
            return
    raise AssertionError("the quota holds everything")


def test_no_storage_url_is_refused_with_the_option(place: Place) -> None:
    with place.unchanged():
        line = refused("--name", "b", "--metadata", place.url("one"), "--data-dir", str(place.directory / "new"))
    assert "--storage-url" in line and place.url("one") in line


def test_a_second_broker_of_one_name_is_told_where_the_first_is(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("one")]
    with place.unchanged():
        line = refused("--name", "a", *options, "--data-dir", str(place.directory / "new"))
    assert "'a'" in line and f"127.0.0.1:{place.living.port}" in line and "--name" in line


def test_the_data_directory_of_a_running_broker_is_refused(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("one")]
    with place.unchanged():
        line = refused("--name", "a", *options, "--data-dir", str(place.living.directory))
    assert str(place.living.directory) in line


def test_a_copy_of_the_data_directory_of_a_living_broker_is_refused(place: Place) -> None:
    """It has the same name and the same log; two brokers would end each other's sessions for ever."""
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("one")]
    copy = place.directory / "copy"
    shutil.copytree(place.living.directory, copy)
    session = {"key": encoded(f"/one/keys{session_key('a')}".encode())}
    try:
        before = place.etcd.members[0].post("kv/range", session)["kvs"]
        with unchanged(copy):
            line = refused("--name", "a", *options, "--data-dir", str(copy))
        assert "'a'" in line and f"127.0.0.1:{place.living.port}" in line and "stop the other" in line
        assert place.etcd.members[0].post("kv/range", session)["kvs"] == before
    finally:
        shutil.rmtree(copy)


def test_a_data_directory_of_another_cluster_is_refused_with_both_names(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("one")]
    with place.unchanged():
        line = refused("--name", "b", *options, "--data-dir", str(place.directory / "two-a"))
    assert str(place.directory / "two-a") in line and place.url("one") in line
    assert line.count("danube-") == 2, "the ids of both clusters"


def test_a_prefix_that_holds_another_cluster_is_refused(place: Place) -> None:
    """The same directory with its own store, and only --metadata is wrong."""
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("two")]
    with place.unchanged():
        line = refused("--name", "a", *options, "--data-dir", str(place.directory / "two-a"))
    assert "cluster" in line


def test_an_object_store_of_another_cluster_is_refused(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("two")]
    with place.unchanged():
        line = refused("--name", "b", *options, "--data-dir", str(place.directory / "new"))
    assert place.objects("two") in line or "two-objects" in line
    assert "cluster" in line


def test_an_object_store_that_this_broker_alone_can_see_is_refused(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("private")]
    with place.unchanged():
        line = refused("--name", "b", *options, "--data-dir", str(place.directory / "new"))
    assert "private-objects" in line and "'a'" in line and "storage.url" in line


def test_a_log_of_another_cluster_is_refused(place: Place) -> None:
    options = ["--metadata", place.url("one"), "--storage-url", place.objects("one")]
    with place.unchanged():
        line = refused(
            *("--name", "b", *options, "--data-dir", str(place.directory / "with-another-log")),
            DANUBE_LOG_DIRECTORY=str(place.directory / "two-a" / "wal"),
        )
    assert "two-a" in line


def test_an_empty_data_directory_under_a_known_name_is_refused(place: Place) -> None:
    """The disk of a stopped broker is not mounted: an empty log would be taken for its log."""
    options = ["--metadata", place.url("two"), "--storage-url", place.objects("two")]
    with place.unchanged():
        line = refused("--name", "a", *options, "--data-dir", str(place.directory / "new"))
    assert "is empty" in line and "'a'" in line


def test_metadata_that_was_emptied_is_refused_and_stays_empty(place: Place) -> None:
    options = ["--metadata", place.url("three"), "--storage-url", place.objects("two")]
    with place.unchanged():
        line = refused("--name", "a", *options, "--data-dir", str(place.directory / "two-a"))
    assert f"{place.url('three')} is empty" in line and str(place.directory / "two-a") in line


@pytest.mark.parametrize("name", ["a", "n"])
def test_an_object_store_that_was_moved_away_is_not_made_anew(place: Place, name: str) -> None:
    """Neither for a broker that has used it, nor for a new one."""
    objects = place.directory / "two-objects"
    options = ["--metadata", place.url("two"), "--storage-url", place.objects("two")]
    objects.rename(place.directory / "moved")
    try:
        with place.unchanged():
            line = refused("--name", name, *options, "--data-dir", str(place.directory / f"two-{name}"))
        assert f"{place.objects('two')} is not there" in line and "broker 'a'" in line and "mount it" in line
    finally:
        (place.directory / "moved").rename(objects)


def test_brokers_that_belong_there_are_started_after_all(place: Place) -> None:
    """What was refused above is refused for its fault, not because no broker can join."""
    with broker(place.directory, "a", place.etcd, "two") as returning:
        assert returning.stop() == 0
    with broker(place.directory, "c", place.etcd, "one") as joining:
        assert joining.is_alive
        assert joining.stop() == 0
