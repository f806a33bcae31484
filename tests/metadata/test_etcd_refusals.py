"""What bad input gets: an etcd that is not there, wants a password, has no space, or holds something else.

Every refusal names the etcd and the remedy. Run by `make test-cluster`, except for what needs no etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_cluster import EtcdCluster, EtcdMember, encoded, etcd_cluster, missing_etcd, programs
from ports import free_ports

from conformance import keys, put, take
from pydanube.metadata.etcd.place import EtcdPlace, TlsFiles
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.model.errors import DanubeError, Denied, Full, NotFound, Refused, Unauthenticated, Unavailable
from pydanube.runtime.clock import SystemClock

needs_etcd = pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")
PATIENCE_S = 120
ROOT = "root-password"
PASSWORD = "right"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster.members[0]


async def opened(*members: EtcdMember | str, prefix: str = "x", **changes: object) -> EtcdStore:
    addresses = tuple(one if isinstance(one, str) else one.address for one in members)
    return await EtcdStore.open(EtcdPlace(addresses, prefix, **changes), SystemClock())  # type: ignore[arg-type]


async def refusal(*members: EtcdMember | str, **changes: object) -> DanubeError:
    """Return the error with which opening fails."""
    with pytest.raises(DanubeError) as refused:
        await opened(*members, **changes)
    assert "\n" not in refused.value.message
    return refused.value


# Nothing there


async def test_an_etcd_that_is_not_there_is_named_with_the_remedy() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    error = await refusal(*addresses, timeout_s=1)
    assert isinstance(error, Unavailable)
    assert f"etcd://{','.join(addresses)}/x" in error.message
    assert "refused" in error.message and "start etcd, or correct --metadata" in error.message


async def test_what_is_there_may_be_no_etcd() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.write(b"HTTP/1.1 400 no\r\n\r\n"), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    error = await refusal(address, timeout_s=1)
    server.close()
    assert isinstance(error, Unavailable)
    assert address in error.message


def serve(data_dir: Path, url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(data_dir), "--port", "0"),
            *("--no-grpc", "--no-admin", "--no-http", "--metadata", url),
            *("--storage-url", (data_dir.parent / "objects").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "DANUBE_LOGGING_LEVEL": "error", **environ},
        check=False,
    )


@pytest.mark.process
async def test_a_broker_without_its_etcd_ends_with_one_line_and_touches_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"etcd://127.0.0.1:{port}/x"
    ended = await asyncio.to_thread(serve, tmp_path / "data", url, DANUBE_METADATA_TIMEOUT_MS="1000")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"danube: {url} cannot be used")
    assert not (tmp_path / "data").exists()


async def test_too_many_requests_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.metadata.etcd.store.WAITING_MAX", 3)
    store = EtcdStore(EtcdPlace((f"127.0.0.1:{free_ports(1)[0]}",), timeout_s=0.5), SystemClock())
    results = await asyncio.gather(*(store.get("/a") for _ in range(5)), return_exceptions=True)
    await store.close()
    assert [type(result) for result in results] == [Unavailable] * 3 + [Full] * 2


# Something else there


@pytest.mark.etcd
@needs_etcd
async def test_a_prefix_of_something_else_is_refused(plain: EtcdMember) -> None:
    plain.post("kv/put", {"key": encoded(b"/taken/config"), "value": ""})
    error = await refusal(plain, prefix="taken")
    assert isinstance(error, Refused)
    assert "/taken/config" in error.message and "choose another prefix" in error.message
    async with await opened(plain, prefix="take") as store:
        assert await store.list("") == [], "a prefix ends with its slash"


@pytest.mark.etcd
@needs_etcd
async def test_a_store_that_is_opened_to_be_read_is_created_by_the_first_write(plain: EtcdMember) -> None:
    place = EtcdPlace((plain.address,), "unused")
    begun = plain.post("maintenance/status")["header"]["revision"]
    async with (
        await EtcdStore.open(place, SystemClock(), create=False) as store,
        await EtcdStore.open(place, SystemClock(), create=False) as slower,
    ):
        assert await store.get("/a") is None and await store.list("") == []
        assert plain.post("maintenance/status")["header"]["revision"] == begun, "nothing was written"
        await put(store, "/a")
        assert (await slower.grant_lease(5000)).lease, "the keys of another broker are not those of something else"
        await put(slower, "/b")
        assert await store.identity() == await slower.identity()
        assert [one.key for one in await store.list("")] == ["/a", "/b"]


@pytest.mark.etcd
@needs_etcd
@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"\xff", "choose another prefix"),
        (b'{"format":1}', "choose another prefix"),
        (b'{"format":2,"store_id":"00","succeeds":[]}', "newer release"),
    ],
)
async def test_a_record_that_cannot_be_read_is_refused(plain: EtcdMember, record: bytes, why: str) -> None:
    prefix = f"record-{len(record)}"
    plain.post("kv/put", {"key": encoded(f"/{prefix}/store".encode()), "value": encoded(record)})
    error = await refusal(plain, prefix=prefix)
    assert isinstance(error, Refused)
    assert why in error.message and f"/{prefix}" in error.message


@pytest.mark.etcd
@needs_etcd
async def test_what_is_written_to_etcd_has_this_form(plain: EtcdMember) -> None:
    async with await opened(plain, prefix="form") as store:
        await put(store, "/topics/default/orders", b"value")
        store_id = (await store.identity()).store_id
    found = plain.post("kv/range", {"key": encoded(b"/form/"), "range_end": encoded(b"/form0")})
    pairs = {one["key"]: one["value"] for one in found["kvs"]}
    assert pairs == {
        encoded(b"/form/keys/topics/default/orders"): encoded(b"value"),
        encoded(b"/form/store"): encoded(b'{"format":1,"store_id":"%s","succeeds":[]}' % store_id.encode()),
    }


@pytest.mark.etcd
@needs_etcd
async def test_stores_of_several_prefixes_do_not_see_each_other(plain: EtcdMember) -> None:
    async with await opened(plain, prefix="one") as one, await opened(plain, prefix="one-two") as two:
        events = one.watch("", 1)
        await put(two, "/theirs")
        await put(one, "/mine")
        assert await keys(one) == ["/mine"]
        assert [event.key for event in await take(events, 1)] == ["/mine"]
        assert (await one.identity()).store_id != (await two.identity()).store_id


@pytest.mark.etcd
@needs_etcd
async def test_a_member_of_another_cluster_is_not_used(plain: EtcdMember, tmp_path: Path) -> None:
    with etcd_cluster(tmp_path, 1) as other:
        stranger = other.members[0]
        async with await opened(stranger, plain, prefix="mixed", timeout_s=2) as store:
            await put(store, "/a")
            stranger.kill()
            with pytest.raises(Unavailable, match="another etcd cluster"):
                await store.get("/a")
    found = plain.post("kv/range", {"key": encoded(b"/mixed/"), "range_end": encoded(b"/mixed0")})
    assert "kvs" not in found


# Users


def enable_users(member: EtcdMember) -> None:
    """Make a user `danube` who may use the prefix /x/ only, and enable authentication."""
    for name, password in (("root", ROOT), ("danube", PASSWORD)):
        member.post("auth/user/add", {"name": name, "password": password})
    member.post("auth/role/add", {"name": "danube"})
    allowed = {"permType": "READWRITE", "key": encoded(b"/x/"), "range_end": encoded(b"/x0")}
    member.post("auth/role/grant", {"name": "danube", "perm": allowed})
    member.post("auth/role/add", {"name": "root"})
    member.post("auth/user/grant", {"user": "root", "role": "root"})
    member.post("auth/user/grant", {"user": "danube", "role": "danube"})
    member.post("auth/enable")


@pytest.fixture(scope="module", params=programs())
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1, program=request.param) as cluster:
        enable_users(cluster.members[0])
        yield cluster


@pytest.mark.etcd
@needs_etcd
async def test_an_etcd_that_wants_a_password_says_so(guarded: EtcdCluster) -> None:
    member = guarded.members[0]
    missing = await refusal(member)
    assert isinstance(missing, Unauthenticated)
    assert "metadata.user" in missing.message and "DANUBE_METADATA_PASSWORD" in missing.message
    for user in ("danube", "nobody"):
        wrong = await refusal(member, user=user, password="wr0ng")
        assert isinstance(wrong, Unauthenticated)
        assert f"'{user}'" in wrong.message and "wr0ng" not in wrong.message
    elsewhere = await refusal(member, prefix="y", user="danube", password=PASSWORD)
    assert isinstance(elsewhere, Denied)
    assert "'danube'" in elsewhere.message and "/y/" in elsewhere.message


@pytest.mark.etcd
@needs_etcd
async def test_a_user_where_there_are_none_is_refused(plain: EtcdMember) -> None:
    error = await refusal(plain, user="danube", password=PASSWORD)
    assert isinstance(error, Refused)
    assert "knows no users" in error.message


@pytest.mark.etcd
@needs_etcd
async def test_a_token_that_is_no_longer_valid_is_renewed(guarded: EtcdCluster) -> None:
    (member,) = guarded.members
    async with await opened(member, user="danube", password=PASSWORD, timeout_s=30) as store:
        events = store.watch("/w/", await put(store, "/w/a"))
        lease, granted_ms = await store.grant_lease(60_000)
        assert await store.keep_alive(lease) == granted_ms
        assert len(await take(events, 1)) == 1
        member.kill()  # with it, its tokens are forgotten
        guarded.start_member(member)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Unavailable):
                    revision = await put(store, "/w/b")
                    break
            assert await store.keep_alive(lease) == granted_ms
        assert (await take(events, 1))[0].revision <= revision


# Space


async def fill(store: EtcdStore, size: int) -> None:
    for _ in range(size // 500_000):
        await put(store, "/a", os.urandom(500_000))


@pytest.mark.etcd
@needs_etcd
@pytest.mark.parametrize("program", programs())
async def test_an_etcd_without_space_says_so_and_works_again_later(program: str, tmp_path: Path) -> None:
    quota = 4 * 1024 * 1024
    with etcd_cluster(tmp_path, 1, program=program, flags=["--quota-backend-bytes", str(quota)]) as cluster:
        (member,) = cluster.members
        async with await opened(member) as store:
            with pytest.raises(Unavailable, match=r"out of space.*quota-backend-bytes.*alarm disarm"):
                await fill(store, 3 * quota)
            assert "out of space" in str(store.failure)
            assert await store.get("/a") is not None, "reads go on"
            await store.compact(await store.revision())
            async with asyncio.timeout(PATIENCE_S):
                while store.failure is not None:  # etcd compacts in the background
                    await asyncio.to_thread(member.post, "maintenance/defragment")
                    status = await asyncio.to_thread(member.post, "maintenance/status")
                    alarm = {"memberID": status["header"]["member_id"], "alarm": "NOSPACE"}
                    await asyncio.to_thread(member.post, "maintenance/alarm", {"action": "DEACTIVATE", **alarm})
                    await asyncio.sleep(0.2)
            await put(store, "/a", b"small")


# TLS


def certificates(directory: Path) -> TlsFiles:
    """Make an authority and one certificate, for 127.0.0.1 and for clients."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    openssl("req", *new, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=danube")
    openssl(
        *("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "cert.pem", "-days", "2", "-extfile", "extensions"),
    )
    return TlsFiles(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")


@pytest.mark.etcd
@needs_etcd
async def test_connections_are_encrypted_and_both_sides_are_known(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "strange").mkdir()
    tls, strange = certificates(tmp_path / "own"), certificates(tmp_path / "strange")
    assert tls.certificate is not None and tls.key is not None and tls.ca is not None
    flags = ["--cert-file", str(tls.certificate), "--key-file", str(tls.key), "--client-cert-auth"]
    cluster = EtcdCluster(tmp_path / "etcd", 1, programs()[0], [*flags, "--trusted-ca-file", str(tls.ca)])
    (member,) = cluster.members
    member.scheme = "https"
    cluster.start_member(member)
    try:
        async with await opened(member, tls=tls, timeout_s=PATIENCE_S) as store:
            events = store.watch("/", await put(store, "/a"))
            assert [event.key for event in await take(events, 1)] == ["/a"]
        for wrong in (None, TlsFiles(ca=tls.ca), TlsFiles(strange.ca, tls.certificate, tls.key)):
            error = await refusal(member, tls=wrong, timeout_s=2)
            assert isinstance(error, Unavailable)
            assert member.address in error.message
    finally:
        cluster.close()


async def test_a_file_that_is_not_there_is_named() -> None:
    error = await refusal("127.0.0.1:1", tls=TlsFiles(ca=Path("/nowhere/ca.pem")))
    assert isinstance(error, NotFound)
    assert "/nowhere/ca.pem" in error.message
