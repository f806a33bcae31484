"""Opening stores by URL: who is found, what is refused, and what is never shown."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.runtime.objects import ObjectStore, Prefixed, open_store, opening
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.store_address import Secrets, StoreAddress, StoreOptions

HEAVY = ("obstore", "redis", "grpc", "google.protobuf", "opendal", "numpy")


async def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(Invalid, match=r"'ftp'.*file, memory, s3"):
        await open_store("ftp://host/path")
    for url in ("", "directory", "/var/lib", "s3:bucket", "://x"):
        with pytest.raises(Invalid, match="named by a URL"):
            await open_store(url)
    with pytest.raises(Invalid, match="host and port"):
        await open_store("redis://host:port/0")


async def test_a_directory_that_is_only_looked_at_is_neither_created_nor_locked(tmp_path: Path) -> None:
    place = tmp_path / "objects"
    assert await opening.peek_store(place.as_uri()) is None
    assert not place.exists()
    place.mkdir()
    found = await opening.peek_store(place.as_uri())
    assert found is not None
    async with found:
        with pytest.raises(NotFound):
            await found.get("some/object")
        assert [one async for one in found.list()] == []
    assert not list(place.iterdir())
    async with await open_store(place.as_uri()) as store:
        await store.put("some/object", b"here")
    found = await opening.peek_store(place.as_uri())
    assert found is not None
    async with found:
        assert bytes(await found.get("some/object")) == b"here"
        await found.put("another", b"and written to if it must be")


async def test_what_is_no_directory_is_refused_when_it_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    found = await opening.peek_store((tmp_path / "file").as_uri())
    assert found is not None
    async with found:
        with pytest.raises(Refused, match="in the way"):
            await found.get("some/object")
    with pytest.raises(Refused, match="in the way"):
        await opening.peek_store((tmp_path / "file" / "below").as_uri())


@pytest.mark.parametrize(
    "scheme", ["s3", "gs", "az", "redis", "rediss", "grpc", "file", "memory", "opendal+s3", "other"]
)
async def test_credentials_in_a_url_are_refused_and_not_repeated(scheme: str) -> None:
    for url in (
        f"{scheme}://hidden-user:hidden-word@host/path",
        f"{scheme}://hidden-user@host",
        f"{scheme}://:hidden-word@h",
    ):
        with pytest.raises(Invalid, match="credentials") as refused:
            await open_store(url)
        assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("url", ["memory://", "s3://bucket", "gs://bucket", "az://container", "grpc://127.0.0.1:1"])
async def test_settings_and_parameters_that_mean_nothing_are_refused_by_name(url: str) -> None:
    with pytest.raises(Invalid, match="no setting 'pasword'") as refused:
        await open_store(url, {"pasword": "hidden-word"})
    assert "hidden-word" not in str(refused.value)
    with pytest.raises(Invalid, match="no parameter 'key'") as refused:
        await open_store(f"{url}?key=hidden-word")
    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("gs://bucket/prefix", {"service_account_key": '{"private_key": "hidden-word"}'}),
        ("az://container", {"account_name": "name", "account_key": "hidden-word not base64!"}),
        ("s3://bucket", {"region": "r", "endpoint": "not a url", "secret_access_key": "hidden-word"}),
    ],
)
async def test_what_cannot_be_opened_does_not_show_its_settings(url: str, settings: dict[str, str]) -> None:
    quick = {"retry_timeout_s": "0.1", "connect_timeout_s": "0.1"}
    with pytest.raises(DanubeError) as failed:
        await (await open_store(url, {**settings, **quick})).head("k")
    assert "hidden-word" not in "".join(traceback.format_exception(failed.value))


async def test_text_that_is_no_number_or_truth_is_refused() -> None:
    for value in ("perhaps", "2", ""):
        with pytest.raises(Invalid, match="use true or false"):
            await open_store("file:///tmp/x", {"shared": value})
    for value in ("soon", "-1", "0", "nan", "1e9"):
        with pytest.raises(Invalid, match="use a time such as 30s"):
            await open_store("s3://bucket", {"timeout_s": value})
    with pytest.raises(Invalid, match="not text"):
        StoreOptions("s3", {"timeout_s": 5})  # type: ignore[dict-item]


def test_a_url_is_shown_as_it_was_given() -> None:
    for url in (
        "s3://bucket/a/b",
        "memory://",
        "redis://127.0.0.1:6379/2?prefix=a/b",
        "grpc://[::1]:6680",
        "file:///a%20b",
    ):
        assert StoreAddress.parse(url).shown.rstrip("/") == url.rstrip("/")


def test_secrets_are_taken_out_of_messages_in_every_spelling() -> None:
    secrets = Secrets(["abc/def+ghi=", "short", "", "abc/def+ghi=longer"])
    told = secrets.scrub("<x>abc/def+ghi=longer</x> abc/def+ghi= abc%2Fdef%2Bghi%3D\n  next line")
    assert told == "<x>***</x> *** *** next line"
    assert len(secrets.scrub("y" * 10_000)) < 500


# -- stores by others --------------------------------------------------------------------------------------------------


async def open_theirs(url: str, settings: Mapping[str, str]) -> ObjectStore:
    return MemoryStore(f"{url}#{settings['colour']}")


async def test_a_store_by_others_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(EntryPoint(name, f"{__name__}:open_theirs", opening.GROUP) for name in ("theirs", "memory"))
    monkeypatch.setattr(opening, "entry_points", lambda group: points.select(group=group))
    async with await open_store("theirs://place/path", {"colour": "blue"}) as store:
        assert store.url == "theirs://place/path#blue"
    async with await open_store("memory://") as store:
        assert store.url == "memory://", "ours cannot be replaced"
    with pytest.raises(Invalid, match="theirs"):
        await open_store("nobodys://x")


def test_a_prefix_is_a_path() -> None:
    for prefix in ("", "/", "a/", "/a", "a b"):
        with pytest.raises(Invalid):
            Prefixed(MemoryStore(), prefix)


# -- what is not installed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket", "obstore", "cloud"),
        ("gs://bucket", "obstore", "cloud"),
        ("redis://127.0.0.1", "redis", "redis"),
        ("grpc://127.0.0.1:1", "grpc", "grpc"),
        ("opendal+s3://bucket", "opendal", "opendal"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(url: str, package: str, extra: str) -> None:
    program = f"""
import asyncio, sys
sys.modules[{package!r}] = None
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.runtime.objects import open_store
try:
    asyncio.run(open_store({url!r}))
except Invalid as error:
    print(error)
"""
    assert f"pip install 'pydanube[{extra}]'" in run(program)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = f"""
import asyncio, sys
from pydanube.runtime.objects import open_store
async def main():
    async with await open_store("memory://") as store:
        await store.put("k", b"")
asyncio.run(main())
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(program) == "[]\n"


def run(program: str) -> str:
    source = str(Path(__file__).parents[2] / "src")
    finished = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": source}, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
