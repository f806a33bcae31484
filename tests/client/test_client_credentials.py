"""Who a client says it is: a token, a file, a function or the environment, none of which is ever shown."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydanube
from pydanube import Invalid, Unauthenticated, Unavailable, testing
from pydanube.client.connection.credentials import ClientCredentials
from pydanube.testing import SecuredBroker

SECRET = "dnb_marked_SECRETSECRETSECRET"
VARIABLES = ("DANUBE_TOKEN", "DANUBE_API_KEY", "DANUBE_TOKEN_FILE")


@pytest.fixture(autouse=True)
def _no_credentials_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with testing.broker_thread(tmp_path_factory.mktemp("broker"), auth=True) as started:
        yield started


@pytest.fixture
def key_file(tmp_path: Path, secured: SecuredBroker) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{secured.admin_key}\n")
    return path


async def connects(secured: SecuredBroker, **arguments: object) -> bool:
    async with pydanube.connect(secured.url, timeout=5, **arguments) as client:  # type: ignore[arg-type]
        return await client.list_namespaces() == ["default"]


async def test_a_token_may_be_text_a_path_or_a_function(secured: SecuredBroker, key_file: Path) -> None:
    async def supply() -> str:
        return secured.admin_key

    assert await connects(secured, token=secured.admin_key)
    assert await connects(secured, token=key_file)
    assert await connects(secured, token=lambda: secured.admin_key)
    assert await connects(secured, token=supply)


async def test_a_key_and_a_file_have_arguments_of_their_own(secured: SecuredBroker, key_file: Path) -> None:
    assert await connects(secured, api_key=secured.admin_key)
    assert await connects(secured, token_file=key_file)
    assert await connects(secured, token_file=str(key_file))


async def test_without_credentials_the_broker_refuses(secured: SecuredBroker) -> None:
    with pytest.raises(Unauthenticated):
        await connects(secured)


@pytest.mark.parametrize("variable", VARIABLES)
async def test_the_environment_tells_who_a_client_is(
    variable: str, secured: SecuredBroker, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(key_file) if variable == "DANUBE_TOKEN_FILE" else secured.admin_key)
    assert await connects(secured)
    with pydanube.connect_blocking(secured.url) as client:
        assert client.list_namespaces() == ["default"]


async def test_an_argument_goes_before_the_environment(secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_TOKEN", SECRET)
    assert await connects(secured, api_key=secured.admin_key)
    with pytest.raises(Unauthenticated):
        await connects(secured)


def test_a_blocking_client_takes_the_same(secured: SecuredBroker, key_file: Path) -> None:
    for arguments in ({"token": secured.admin_key}, {"api_key": key_file}, {"token_file": key_file}):
        with pydanube.connect_blocking(secured.url, **arguments) as client:  # type: ignore[arg-type]
            assert client.list_namespaces() == ["default"]


async def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    credentials = ClientCredentials(path)
    assert await credentials.token() == "first"
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").replace(path)
    assert await credentials.token() == "second"


async def test_a_file_that_is_away_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    credentials = ClientCredentials(path)
    await credentials.token()
    path.unlink()
    with pytest.raises(Unavailable, match="no such file"):
        await credentials.token()


@pytest.mark.parametrize("content", ["", f"{SECRET} two words", SECRET * 10_000], ids=["empty", "blank", "long"])
async def test_a_wrong_file_is_named_without_what_it_holds(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(Invalid, match=str(path)) as refused:
        async with pydanube.connect("danube://127.0.0.1:1", timeout=5, token_file=path):
            pass
    assert "SECRET" not in str(refused.value)


async def test_a_file_that_does_not_exist_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: no such file"):
        async with pydanube.connect("danube://127.0.0.1:1", timeout=600, token_file=tmp_path / "absent"):
            pass


def test_several_credentials_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="token and api_key are given"):
        pydanube.connect(token=SECRET, api_key=SECRET)
    monkeypatch.setenv("DANUBE_TOKEN", SECRET)
    monkeypatch.setenv("DANUBE_TOKEN_FILE", "/x")
    with pytest.raises(Invalid, match="DANUBE_TOKEN and DANUBE_TOKEN_FILE are set") as refused:
        pydanube.connect()
    assert SECRET not in str(refused.value)


def test_an_empty_variable_counts_as_unset() -> None:
    assert not ClientCredentials.of_environment(dict.fromkeys(VARIABLES, "")).can_change


def test_a_wrong_variable_or_argument_is_named_without_its_value() -> None:
    with pytest.raises(Invalid, match="DANUBE_API_KEY") as refused:
        ClientCredentials.of_environment({"DANUBE_API_KEY": f"{SECRET} x"})
    assert SECRET not in str(refused.value)
    with pytest.raises(Invalid, match="api_key") as refused:
        pydanube.connect(api_key=f"{SECRET} x")
    assert SECRET not in str(refused.value)
    with pytest.raises(Invalid, match="neither text") as refused:
        pydanube.connect(token=SECRET.encode())  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"danube://user:{SECRET}@host:6655",
        f"redis://user:{SECRET}@host:6655",
        f"user:{SECRET}@host",
        f"danube://host:6655?token={SECRET}",
        f"danube://host:6655#{SECRET}",
        f"http://{SECRET}@host",
    ],
)
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Invalid, match="no password and no token") as refused:
        pydanube.connect(url)
    assert SECRET not in str(refused.value)
    assert "token_file" in str(refused.value)


async def test_a_refused_token_is_nowhere_to_be_seen(
    secured: SecuredBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail() -> str:
        raise RuntimeError(SECRET)

    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    (tmp_path / "token").write_text(SECRET)
    for token in (SECRET, tmp_path / "token", lambda: SECRET, fail):
        client = pydanube.connect(secured.url, timeout=1, token=token)
        shown += [repr(client), str(client), repr(vars(client)), repr(vars(client._brokers))]
        with pytest.raises((Unauthenticated, Unavailable)) as refused:
            await client.open()
        shown += traceback.format_exception(refused.value)
        await client.close()
    printed = capfd.readouterr()
    for text in (*shown, caplog.text, printed.out, printed.err):
        assert SECRET not in text


def test_what_a_test_gets_of_a_secured_broker(secured: SecuredBroker) -> None:
    assert secured.admin_key not in repr(secured)
    with secured.admin_blocking() as client:
        client.create_topic("/default/secured")
    assert os.environ.get("DANUBE_TOKEN") is None


async def test_a_secured_broker_on_the_loop() -> None:
    async with testing.broker(auth=True) as secured, secured.admin() as client:
        assert await client.list_namespaces() == ["default"]
        with pytest.raises(Unauthenticated):
            await connects(SecuredBroker(secured.url, ""))


def test_the_fixture(danube_secured: SecuredBroker) -> None:
    with danube_secured.admin_blocking() as client:
        assert client.list_namespaces() == ["default"]
