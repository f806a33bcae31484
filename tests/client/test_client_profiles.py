"""Programs that name a profile: which broker they connect to, and as whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydanube
from pydanube import Invalid, NotFound, testing
from pydanube.client.profiles import Profile, Profiles
from pydanube.testing import SecuredBroker

NOWHERE = "danube://127.0.0.1:1"


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with testing.broker_thread(auth=True) as started:
        yield started


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    """The profiles of a user who has none, and no variable."""
    for name in [name for name in os.environ if name.startswith("DANUBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DANUBE_CONFIG_HOME", str(tmp_path))
    return Profiles.load()


def stored(profiles: Profiles, name: str, *given: object, use: bool = False) -> None:
    profiles.add(name, Profile(*given), replace=False)  # type: ignore[arg-type]
    if use:
        profiles.use(name)
    profiles.save()


async def reaches(client: pydanube.Client) -> bool:
    async with client:
        return "default" in await client.namespaces.list()


async def test_a_profile_says_where_and_as_whom(profiles: Profiles, secured: SecuredBroker) -> None:
    stored(profiles, "here", secured.url, {"api_key": secured.admin_key})
    assert await reaches(pydanube.connect(profile="here"))
    with pydanube.connect_blocking(profile="here") as client:
        assert "default" in client.namespaces.list()
    with pytest.raises(NotFound, match=r"no profile 'there' \(there are: here\)"):
        pydanube.connect(profile="there")


async def test_an_app_takes_a_profile_when_it_is_made_and_when_it_runs(
    profiles: Profiles, secured: SecuredBroker
) -> None:
    stored(profiles, "here", secured.url, {"api_key": secured.admin_key})
    stored(profiles, "there", NOWHERE, {"token": "there"})
    async with pydanube.App(profile="here").running() as client:
        assert client.url == secured.url
    async with pydanube.App(profile="there").running(profile="here") as client:
        assert client.url == secured.url
    async with pydanube.App(NOWHERE, token="there").running(profile="here") as client:
        assert client.url == secured.url
    async with pydanube.App(profile="there").running(secured.url, api_key=secured.admin_key) as client:
        assert client.url == secured.url


async def test_an_app_that_runs_elsewhere_does_not_show_the_credentials_of_its_profile(
    profiles: Profiles, secured: SecuredBroker
) -> None:
    stored(profiles, "here", NOWHERE, {"api_key": secured.admin_key})
    with pytest.raises(pydanube.Unauthenticated):
        async with pydanube.App(profile="here").running(secured.url):
            pass


async def test_without_an_address_the_order_is_that_of_commands(
    profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(profiles, "used", "danube://used:1", use=True)
    stored(profiles, "named", "danube://named:1")
    assert pydanube.connect().url == "danube://used:1"
    assert pydanube.connect("danube://given:1").url == "danube://given:1"
    monkeypatch.setenv("DANUBE_PROFILE", "named")
    assert pydanube.connect().url == "danube://named:1"
    monkeypatch.setenv("DANUBE_URL", "danube://variable:1")
    assert pydanube.connect().url == "danube://variable:1"
    assert pydanube.connect(profile="used").url == "danube://used:1"
    assert pydanube.connect("danube://given:1", profile="used").url == "danube://given:1"


async def test_what_is_given_comes_before_the_profile_and_the_environment_before_one_that_is_not_named(
    profiles: Profiles, monkeypatch: pytest.MonkeyPatch, secured: SecuredBroker
) -> None:
    stored(profiles, "wrong", secured.url, {"token": "wrong"}, use=True)
    assert await reaches(pydanube.connect(profile="wrong", api_key=secured.admin_key))
    monkeypatch.setenv("DANUBE_API_KEY", secured.admin_key)
    assert await reaches(pydanube.connect())
    with pytest.raises(pydanube.Unauthenticated):
        await reaches(pydanube.connect(profile="wrong"))


async def test_files_of_tls_are_those_of_the_profile(profiles: Profiles) -> None:
    stored(profiles, "tls", "danubes://there:1", {}, {"tls_ca_file": "/nowhere/ca.pem"})
    with pytest.raises(Invalid, match=r"/nowhere/ca\.pem"):
        await reaches(pydanube.connect(profile="tls"))
