"""S3, against a real server: SeaweedFS."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from object_servers import S3_BUCKET, S3_KEY, S3_SECRET, Server, missing_weed, s3_server, s3_settings
from objects_conformance import Conformance, Place, keys_of, put_all

from pydanube.model.errors import AlreadyExists, Denied, Invalid, Refused, Unauthenticated, Unavailable
from pydanube.runtime.objects import open_store
from pydanube.runtime.randomness import identity

pytestmark = pytest.mark.skipif(bool(missing_weed()), reason=missing_weed())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def place(server: Server) -> Place:
    return Place(f"s3://{S3_BUCKET}/{identity()}/in", s3_settings(server.port))


class TestS3(Conformance):
    """SeaweedFS keeps directories: parts of keys have at most 255 characters, and `a/b` is listed before `a-b`."""

    @pytest.fixture
    def place(self, place: Place) -> Place:
        return Place(place.url, {**place.settings, "ordered_listing": "false"}, part_characters_max=255)


async def test_a_listing_is_read_page_by_page_where_the_server_keeps_the_order(place: Place) -> None:
    async with await open_store(place.url, place.settings) as store:
        keys = sorted(f"segments/{n % 7:016x}/{n:020}.seg" for n in range(1200))
        await put_all(store, keys)
        assert await keys_of(store) == keys
        assert await keys_of(store, "segments/0000000000000003/0000000000000000") == keys_within(keys, 3)
        assert await keys_of(store, "segments/", after=keys[700]) == keys[701:]


def keys_within(keys: list[str], topic: int) -> list[str]:
    return [key for key in keys if key.startswith(f"segments/{topic:016x}/")]


async def test_a_listing_out_of_order_is_refused(place: Place) -> None:
    async with await open_store(place.url, place.settings) as store:
        await put_all(store, ["a/b", "a-b"])
        with pytest.raises(Refused, match="ordered_listing"):
            await keys_of(store)


async def test_a_bucket_that_is_not_there_is_said_so(server: Server) -> None:
    async with await open_store("s3://no-such-bucket", s3_settings(server.port)) as store:
        with pytest.raises(Unavailable, match="no-such-bucket"):
            await store.put("k", b"", create=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret_access_key": "another-secret-that-is-wrong"},
        {"access_key_id": "unknown-access-key", "secret_access_key": "another-secret-that-is-wrong"},
    ],
)
async def test_no_credential_is_in_what_is_said_of_a_refusal(place: Place, wrong: dict[str, str]) -> None:
    settings = {**place.settings, **wrong}
    async with await open_store(place.url, settings) as store:
        for work in (store.put("k", b"x"), store.get("k"), store.head("k"), store.delete(["k"]), keys_of(store)):
            with pytest.raises((Denied, Unauthenticated)) as refused:
                await work
            said = "".join(traceback.format_exception(refused.value)) + repr(store) + store.url
            for secret in (settings["access_key_id"], settings["secret_access_key"]):
                assert secret not in said


async def test_a_server_that_is_not_there_is_unavailable_in_bounded_time(place: Place) -> None:
    settings = {**place.settings, "endpoint": "http://127.0.0.1:1", "retry_timeout_s": "0.3", "connect_timeout_s": "1"}
    async with await open_store(place.url, settings) as store:
        with pytest.raises(Unavailable) as unavailable:
            await store.put("k", b"x", create=True)
        assert S3_SECRET not in str(unavailable.value) and S3_KEY not in str(unavailable.value)


async def test_prefixes_are_apart(place: Place) -> None:
    async with (
        await open_store(place.url, place.settings) as one,
        await open_store(f"{place.url}2", place.settings) as two,
    ):
        await one.put("k", b"1", create=True)
        await two.put("k", b"2", create=True)
        assert await keys_of(one) == ["k"] == await keys_of(two)
        with pytest.raises(AlreadyExists):
            await one.put("k", b"", create=True)


async def test_unknown_settings_are_refused_by_name(place: Place) -> None:
    with pytest.raises(Invalid, match="'acess_key'") as refused:
        await open_store(place.url, {**place.settings, "acess_key": "hidden-value"})
    assert "hidden-value" not in str(refused.value)
    with pytest.raises(Invalid, match="names a bucket"):
        await open_store("s3:///prefix", place.settings)
