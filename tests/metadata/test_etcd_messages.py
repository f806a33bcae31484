"""The bytes and paths that the store on etcd sends: etcd's published API, written down here. Needs no etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from pydanube.metadata import Compare, Delete, Put
from pydanube.metadata.etcd import rpc
from pydanube.metadata.etcd.place import EtcdPlace
from pydanube.metadata.etcd.store import EtcdStore, StoreRecord
from pydanube.runtime.clock import SystemClock

METHODS = {
    "RANGE": "/etcdserverpb.KV/Range",
    "TXN": "/etcdserverpb.KV/Txn",
    "COMPACT": "/etcdserverpb.KV/Compact",
    "WATCH": "/etcdserverpb.Watch/Watch",
    "LEASE_GRANT": "/etcdserverpb.Lease/LeaseGrant",
    "LEASE_REVOKE": "/etcdserverpb.Lease/LeaseRevoke",
    "LEASE_KEEP_ALIVE": "/etcdserverpb.Lease/LeaseKeepAlive",
    "AUTHENTICATE": "/etcdserverpb.Auth/Authenticate",
}


@pytest.mark.parametrize(("name", "path"), METHODS.items())
def test_methods_are_called_by_etcds_names(name: str, path: str) -> None:
    assert getattr(rpc, name).path == path


def test_messages_are_in_a_package_of_our_own() -> None:
    assert rpc.TxnRequest.DESCRIPTOR.full_name == "pydanube.etcd.TxnRequest"


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (rpc.RangeRequest(key=b"a", range_end=b"b", limit=5, revision=7), "0a016112016218052007"),
        (rpc.RangeRequest(key=b"a", serializable=True, keys_only=True, count_only=True), "0a0161380140014801"),
        (rpc.CompactionRequest(revision=3), "0803"),
        (rpc.LeaseGrantRequest(TTL=10), "080a"),
        (rpc.LeaseRevokeRequest(ID=9), "0809"),
        (rpc.LeaseKeepAliveRequest(ID=9), "0809"),
        (rpc.AuthenticateRequest(name="u", password="p"), "0a0175120170"),
        (
            rpc.WatchRequest(
                create_request=rpc.WatchCreateRequest(
                    key=b"a", range_end=b"b", start_revision=4, progress_notify=True, fragment=True
                )
            ),
            "0a0c0a0161120162180420014001",
        ),
    ],
)
def test_requests_have_etcds_field_numbers(message: object, encoded: str) -> None:
    assert message.SerializeToString().hex() == encoded  # type: ignore[attr-defined]


@pytest.fixture
async def store() -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdPlace(("127.0.0.1:1",), "p"), SystemClock())  # it connects with the first request
    yield store
    await store.close()


KEY = b"/p/keys/a".hex()


@pytest.mark.parametrize(
    ("compare", "encoded"),
    [
        (Compare.missing("/a"), f"1a09{KEY}2000"),
        (Compare.version("/a", 2), f"1a09{KEY}2002"),
        (Compare.mod_revision("/a", 3), f"10021a09{KEY}3003"),
        (Compare.value("/a", b"v"), f"10031a09{KEY}3a0176"),
    ],
)
async def test_a_comparison_is_sent_as_these_bytes(store: EtcdStore, compare: Compare, encoded: str) -> None:
    assert store._compare(compare).SerializeToString().hex() == encoded


@pytest.mark.parametrize(
    ("write", "encoded"),
    [
        (Put("/a", b"w"), f"120e0a09{KEY}120177"),
        (Put("/a", b"w", 6), f"12100a09{KEY}1201771806"),
        (Delete("/a"), f"1a0b0a09{KEY}"),
    ],
)
async def test_a_write_is_sent_as_these_bytes(store: EtcdStore, write: Put | Delete, encoded: str) -> None:
    assert store._operation(write).SerializeToString().hex() == encoded


def test_a_store_knows_its_record_by_these_bytes() -> None:
    record = StoreRecord(1, "5f" * 16, [("81" * 16, 1234)])
    text = b'{"format":1,"store_id":"' + b"5f" * 16 + b'","succeeds":[["' + b"81" * 16 + b'",1234]]}'
    assert msgspec.json.encode(record) == text
    assert msgspec.json.decode(text, type=StoreRecord) == record
