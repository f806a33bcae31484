"""Services through opendal: its S3, against SeaweedFS, and what is refused."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from object_servers import S3_BUCKET, Server, missing_weed, s3_server, s3_settings
from objects_conformance import Conformance, Place

from pydanube.model.errors import DanubeError, Invalid, Refused
from pydanube.runtime.objects import open_store
from pydanube.runtime.randomness import identity


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert not missing_weed(), missing_weed()
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def place(server: Server) -> Place:
    return Place(f"opendal+s3://{S3_BUCKET}/{identity()}", s3_settings(server.port), part_characters_max=255)


@pytest.mark.stores
class TestOpendalS3(Conformance):
    pass


@pytest.mark.stores
async def test_no_credential_is_in_what_is_said_of_a_refusal(place: Place) -> None:
    settings = {**place.settings, "secret_access_key": "another-secret-that-is-wrong"}
    async with await open_store(place.url, settings) as store:
        for work in (store.put("k", b"x"), store.get("k"), store.head("k")):
            with pytest.raises(DanubeError) as refused:
                await work
            said = "".join(traceback.format_exception(refused.value)) + repr(store) + store.url
            assert "another-secret" not in said and settings["access_key_id"] not in said


@pytest.mark.parametrize(
    ("url", "settings", "reason"),
    [
        ("opendal+fs:///tmp/somewhere", {}, "use file://"),
        ("opendal+memory://", {}, "use memory://"),
        ("opendal+webdav:///root", {"endpoint": "http://127.0.0.1:1"}, "cannot create without replacing"),
        ("opendal+redis:///root", {"endpoint": "redis://127.0.0.1:1"}, "cannot create without replacing, list"),
    ],
)
async def test_a_service_that_cannot_do_what_the_broker_needs_is_refused(
    url: str, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        await open_store(url, settings)


async def test_services_and_settings_that_opendal_does_not_know_are_refused_by_name() -> None:
    with pytest.raises(Invalid, match="no service 'nonsense'"):
        await open_store("opendal+nonsense://x")
    with pytest.raises(Invalid, match="no setting 'acess_key'"):
        await open_store("opendal+s3://bucket", {"acess_key": "x"})
    with pytest.raises(Invalid, match="no bucket"):
        await open_store("opendal+webdav://host/root")
