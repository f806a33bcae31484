"""Profiles, token files and the environment: which broker a command talks to, and as whom."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import commands
import pytest
from commands import Ended

from exhaustive import several
from pydanube import testing
from pydanube.cli.security.certificate_files import make_certificates
from pydanube.runtime.clock import SystemClock
from pydanube.testing import SecuredBroker

SECRET = "dnb_marked_SECRETSECRETSECRET"
NOWHERE = "danube://127.0.0.1:1"

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with testing.broker_thread(tmp_path_factory.mktemp("broker"), auth=True) as started:
        yield started


@pytest.fixture
def key_file(tmp_path: Path, secured: SecuredBroker) -> Path:
    (tmp_path / "key").write_text(secured.admin_key + "\n")
    return tmp_path / "key"


@pytest.fixture
def danube(tmp_path: Path) -> Run:
    """Run one command with a home of its own and only the variables given; no output may hold the marked secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DANUBE_", "XDG_"))}

    def run(*arguments: str, stdin: str = "", **variables: str) -> Ended:
        environment = kept | {"DANUBE_CONFIG_HOME": str(tmp_path / "config")} | variables
        done = commands.danube(*arguments, stdin=stdin, environment=environment)
        assert SECRET not in done.stdout + done.stderr
        return done

    return run


def ok(done: Ended) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_profile_is_added_used_listed_and_removed(danube: Run, secured: SecuredBroker, tmp_path: Path) -> None:
    ok(danube("profile", "add", "here", "--url", secured.url, "--api-key", "-", stdin=secured.admin_key))
    ok(danube("profile", "add", "there", "--url", NOWHERE, "--token", "-", stdin=f"{SECRET}\n"))
    path = tmp_path / "config" / "profiles.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ok(danube("namespaces", "list", "--profile", "here")).split()[-1] == "default"
    assert ok(danube("--profile", "here", "namespaces", "list")).split()[-1] == "default"
    assert danube("namespaces", "list", DANUBE_PROFILE="there").returncode == 1
    ok(danube("profile", "use", "here"))
    assert ok(danube("namespaces", "list")).split()[-1] == "default"
    listed = ok(danube("profile", "list", "--json"))
    assert json.loads(listed) == [
        {"profile": "here", "url": secured.url, "credentials": "API key", "current": True},
        {"profile": "there", "url": NOWHERE, "credentials": "token", "current": False},
    ]
    assert secured.admin_key not in listed + ok(danube("profile", "list"))
    ok(danube("profile", "remove", "here"))
    assert "api_key" not in path.read_text()
    assert "current" not in path.read_text()


def test_a_token_file_is_read_by_each_command(danube: Run, secured: SecuredBroker, key_file: Path) -> None:
    refused = danube("namespaces", "list", "--url", secured.url)
    assert refused.returncode == 1
    assert "(--token-file, --profile, DANUBE_TOKEN or --tls-cert-file)" in refused.stderr
    ok(danube("namespaces", "list", "--url", secured.url, "--token-file", str(key_file)))
    ok(danube("--url", secured.url, "--token-file", str(key_file), "namespaces", "list"))
    ok(danube("namespaces", "list", DANUBE_URL=secured.url, DANUBE_TOKEN_FILE=str(key_file)))
    ok(danube("profile", "add", "file", "--url", secured.url, "--token-file", str(key_file)))
    ok(danube("namespaces", "list", "--profile", "file"))
    key_file.write_text(SECRET)
    assert "Unauthenticated" not in ok(danube("profile", "list"))
    assert danube("namespaces", "list", "--profile", "file").returncode == 1


def test_an_option_goes_before_the_environment_and_that_before_the_profile_in_use(
    danube: Run, secured: SecuredBroker, key_file: Path
) -> None:
    ok(danube("profile", "add", "wrong", "--url", secured.url, "--token", "-", stdin=SECRET))
    ok(danube("profile", "add", "right", "--url", secured.url, "--api-key", "-", stdin=secured.admin_key))
    ok(danube("profile", "use", "wrong"))
    listing = ("namespaces", "list")
    assert danube(*listing).returncode == 1
    ok(danube(*listing, DANUBE_API_KEY=secured.admin_key))  # the broker of the profile, the key of the environment
    ok(danube(*listing, "--token-file", str(key_file), DANUBE_TOKEN=SECRET))
    ok(danube(*listing, "--profile", "right", DANUBE_TOKEN=SECRET, DANUBE_URL=NOWHERE))  # --profile is an option
    ok(danube(*listing, DANUBE_PROFILE="right"))
    assert danube(*listing, DANUBE_PROFILE="right", DANUBE_URL=NOWHERE).returncode == 1


def test_credentials_of_a_profile_go_to_its_broker_only(danube: Run, secured: SecuredBroker) -> None:
    ok(danube("profile", "add", "other", "--url", NOWHERE, "--api-key", "-", stdin=secured.admin_key))
    ok(danube("profile", "use", "other"))
    for arguments, variables in ((("--url", secured.url), {}), ((), {"DANUBE_URL": secured.url})):
        refused = danube("namespaces", "list", *arguments, **variables)
        assert refused.returncode == 1
        assert "credentials" in refused.stderr
    ok(danube("namespaces", "list", "--url", secured.url, "--profile", "other"))  # both are named


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """The URL and the administrator's key of a broker with TLS and authentication, and the directory of certificates
    that clients need."""
    certificates, data = tmp_path_factory.mktemp("certificates"), tmp_path_factory.mktemp("encrypted")
    for name, content in make_certificates(("127.0.0.1",), SystemClock().now_us()).items():
        (certificates / name).write_bytes(content)
        (certificates / name).chmod(0o600)
    with testing.broker_thread(
        data,
        auth=True,
        tls_cert_file=str(certificates / "broker.pem"),
        tls_key_file=str(certificates / "broker-key.pem"),
        tls_client_ca_file=str(certificates / "ca.pem"),
        tls_client_certificates="required",
    ) as started:
        yield started.url, started.admin_key, certificates


def test_a_profile_names_the_files_of_tls(danube: Run, encrypted: tuple[str, str, Path], tmp_path: Path) -> None:
    url, key, certificates = encrypted
    pair = ("--tls-cert-file", str(certificates / "client.pem"), "--tls-key-file", str(certificates / "client-key.pem"))
    authority = ("--tls-ca-file", str(certificates / "ca.pem"))
    ok(danube("profile", "add", "tls", "--url", url, *authority, *pair, "--api-key", "-", stdin=key))
    assert "default" in ok(danube("namespaces", "list", "--profile", "tls"))
    (listed,) = json.loads(ok(danube("profile", "list", "--json")))
    assert listed["tls_ca_file"] == str(certificates / "ca.pem")
    ok(danube("profile", "use", "tls"))
    assert "default" in ok(danube("namespaces", "list", DANUBE_TLS_CA_FILE=str(certificates / "client.pem")))
    refused = danube("namespaces", "list", "--tls-ca-file", str(certificates / "client.pem"))  # an option goes first
    assert refused.returncode == 1
    assert "certificate" in refused.stderr
    alone = danube("profile", "add", "half", "--url", url, *pair[:2])
    assert alone.returncode == 2
    assert "belong together" in alone.stderr


@pytest.mark.parametrize("option", ["--token", "--api-key"])
def test_a_secret_on_the_command_line_is_refused(option: str, danube: Run, tmp_path: Path) -> None:
    refused = danube("profile", "add", "x", "--url", NOWHERE, option, SECRET)
    assert refused.returncode == 2
    assert "stdin" in refused.stderr
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("mode", several([0o640], [0o640, 0o604, 0o660]))
def test_a_file_that_others_can_read_is_refused_with_the_remedy(mode: int, danube: Run, tmp_path: Path) -> None:
    ok(danube("profile", "add", "x", "--url", NOWHERE, "--token", "-", stdin=SECRET))
    path = tmp_path / "config" / "profiles.toml"
    path.chmod(mode)
    for command in (["profile", "list"], ["namespaces", "list"], ["namespaces", "list", "--profile", "x"]):
        refused = danube(*command)
        assert refused.returncode in (1, 2)
        assert f"chmod 600 {path}" in refused.stderr.replace("\n", " ")
    assert danube("namespaces", "list", "--url", NOWHERE).returncode == 1  # it needs no profile


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (f'[profiles.x]\nurl = "danube://h"\ntoken = "{SECRET}\n', "not TOML, at line 3"),
        (f'[profiles.x]\nurl = "danube://h"\ntoken = "{SECRET} x"\n', "profile 'x'"),
        (f'[profiles.x]\nurl = "danube://{SECRET}@h"\n', "no password and no token"),
        (f'[profiles.x]\nurl = "danube://h"\ntoken = "{SECRET}"\napi_key = "{SECRET}"\n', "token and api_key"),
        (f'[profiles.x]\nurl = "danube://h"\nsecret = "{SECRET}"\n', "has secret, which no profile has"),
        ("[profiles.x]\nurl = 1\n", "not a table of texts"),
        ('other = "x"\n', "has other"),
    ],
)
def test_a_wrong_file_is_named_without_its_secrets(content: str, told: str, danube: Run, tmp_path: Path) -> None:
    path = tmp_path / "config" / "profiles.toml"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(content)
    refused = danube("profile", "list")
    assert refused.returncode == 1
    assert told in refused.stderr
    assert str(path) in refused.stderr


def test_wrong_names_and_profiles_that_are_not_there(danube: Run) -> None:
    assert danube("profile", "add", "a b", "--url", NOWHERE).returncode == 2
    ok(danube("profile", "add", "a.b", "--url", NOWHERE))
    assert "--replace" in danube("profile", "add", "a.b", "--url", NOWHERE).stderr
    ok(danube("profile", "add", "a.b", "--url", NOWHERE, "--replace"))
    for command in (["profile", "use", "c"], ["profile", "remove", "c"], ["topics", "list", "--profile", "c"]):
        refused = danube(*command)
        assert refused.returncode in (1, 2)
        assert "there is no profile 'c' (there are: a.b)" in refused.stderr
    several = danube("profile", "add", "d", "--url", NOWHERE, "--token-file", "/x", "--token", "-", stdin=SECRET)
    assert several.returncode == 2


def test_where_the_file_is(danube: Run, tmp_path: Path) -> None:
    ok(danube("profile", "add", "a", "--url", NOWHERE, DANUBE_CONFIG_HOME="", XDG_CONFIG_HOME=str(tmp_path / "xdg")))
    assert (tmp_path / "xdg" / "danube" / "profiles.toml").exists()
    ok(danube("profile", "add", "a", "--url", NOWHERE, DANUBE_CONFIG_HOME="", HOME=str(tmp_path)))
    assert (tmp_path / ".config" / "danube" / "profiles.toml").exists()
