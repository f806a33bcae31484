"""API keys, client certificates, the cluster token, the first key, and what is refused at the start."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pydanube.broker.security import authentication
from pydanube.broker.security.api_keys import describe_refusal, find_identity, new_key
from pydanube.broker.security.authentication import AcceptedCredentials, AddressFailures, Authentication
from pydanube.broker.security.certificate_rules import CertificateRule
from pydanube.broker.security.first_key import create_first_key
from pydanube.broker.security.records import KeyRecord
from pydanube.broker.security.security_store import SecurityStore
from pydanube.core.access_rules import AccessRules
from pydanube.core.identity import Credentials, PeerCertificate
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import DanubeError, Invalid, Refused, Unauthenticated
from pydanube.model.security import BoundSubject
from pydanube.model.settings.sections import AuthSettings
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.server.securing import check_settings, is_super_user_by_default, unused_credentials
from pydanube.settings import Settings

ALICE = BoundSubject.parse("user:alice")
TOKEN = "0123456789abcdef0123456789abcdef"
NOW = 1_700_000_000_000_000


# -- API keys ----------------------------------------------------------------------------------------------------------


def test_a_key_has_256_random_bits_and_only_their_hash_is_stored() -> None:
    made = [new_key(ALICE, NOW) for _ in range(50)]
    assert len({new.secret for new, _ in made}) == len({record.hash for _, record in made}) == 50
    for new, record in made:
        prefix, key_id, secret = new.secret.split("_", 2)
        assert (prefix, key_id, len(secret)) == ("dnb", new.key.id, 43)
        assert secret not in repr(new) and secret.encode() not in record.hash


def test_a_key_is_accepted_whole_and_right_and_until_it_expires() -> None:
    new, record = new_key(ALICE, NOW, groups=["ops"], expires_at=NOW + 10)
    keys = {new.key.id: record}
    found = find_identity(new.secret, keys, NOW)
    assert found is not None
    assert (found.principal.id, found.principal.groups, found.key_id) == ("user:alice", ("ops",), new.key.id)
    assert found.expires_at_us == NOW + 10
    assert find_identity(new.secret, keys, NOW + 10) is None
    assert find_identity(new.secret, {}, NOW) is None
    for cut in range(len(new.secret)):
        assert find_identity(new.secret[:cut], keys, NOW) is None
    for place in range(len(new.secret)):
        other = "b" if new.secret[place] != "b" else "c"
        assert find_identity(new.secret[:place] + other + new.secret[place + 1 :], keys, NOW) is None
    other_key, _ = new_key(ALICE, NOW)
    mixed = f"dnb_{new.key.id}_{other_key.secret.split('_', 2)[2]}"
    for wrong in (mixed, new.secret + "a", f" {new.secret}", new.secret.upper(), f"dnb__{'a' * 43}"):
        assert find_identity(wrong, keys, NOW) is None


def test_the_log_says_which_key_is_refused_and_why() -> None:
    new, record = new_key(ALICE, NOW, expires_at=NOW + 10)
    keys, name, wrong = {new.key.id: record}, new.key.id, new.secret[:-8] + "x" * 8
    assert describe_refusal(wrong, keys, NOW) == f"the secret of API key {name} is wrong"
    assert describe_refusal(new.secret, keys, NOW + 10) == f"API key {name} has expired"
    assert describe_refusal(new.secret, {}, NOW).startswith(f"there is no API key {name}: it was revoked")
    assert "form" in describe_refusal(new.secret[:-1], keys, NOW)


def test_a_key_belongs_to_no_group_and_ends_in_the_future() -> None:
    with pytest.raises(Invalid, match="is a group"):
        new_key(BoundSubject.parse("group:ops"), NOW)
    with pytest.raises(Invalid, match="expired already"):
        new_key(ALICE, NOW, expires_at=NOW)
    assert find_identity(new_key(ALICE, NOW)[0].secret, {"x": KeyRecord("group:ops", b"")}, NOW) is None


# -- certificates ------------------------------------------------------------------------------------------------------

LOADER = PeerCertificate("CN=loader,O=Example", ("DNS:loader.example", "URI:spiffe://example/loader"))


@pytest.mark.parametrize(
    ("rule", "principal"),
    [
        ("SAN URI:spiffe://example/(.*) => service_account:{1}", "service_account:loader"),
        ("subject CN=([^,]+),O=(.*) => user:{2}-{1}", "user:Example-loader"),
        (r"SAN DNS:([a-z]+)\.example => broker:{1}", "broker:loader"),
        ("SAN URI:spiffe://example => user:{0}", None),
        ("subject CN=load => user:x", None),
        ("subject O=Example => user:x", None),
        ("SAN DNS:(x*)loader.example => user:{1}", None),
    ],
)
async def test_rules_map_a_certificate_to_a_principal(rule: str, principal: str | None) -> None:
    accepted = AcceptedCredentials(certificate_rules=[CertificateRule.parse(rule)])
    authentication = Authentication(AuthSettings(), accepted, dict, None, ManualClock(NOW))
    if principal is None:
        with pytest.raises(Unauthenticated):
            await authentication.authenticate(Credentials(certificate=LOADER), "192.0.2.1")
        return
    found = await authentication.authenticate(Credentials(certificate=LOADER), "192.0.2.1")
    assert (found.principal.id, found.method) == (principal, "certificate")


@pytest.mark.parametrize("first", ["SAN DNS:(x*)loader.example => user:{1}", "subject (.*) => user:two words {1}"])
async def test_the_first_rule_that_matches_counts_also_if_it_makes_no_name(first: str) -> None:
    rules = [CertificateRule.parse(first), CertificateRule.parse("subject .* => broker:anybody")]
    authentication = Authentication(
        AuthSettings(), AcceptedCredentials(certificate_rules=rules), dict, None, ManualClock(NOW)
    )
    with pytest.raises(Unauthenticated):
        await authentication.authenticate(Credentials(certificate=LOADER), "192.0.2.1")


async def test_a_certificate_with_a_name_that_is_too_long_to_be_compared_is_nobodys() -> None:
    rules = [CertificateRule.parse("SAN URI:(.*) => user:{1}"), CertificateRule.parse("subject .* => broker:anybody")]
    long = replace(LOADER, names=(f"URI:{'x' * 1_000}", *LOADER.names))
    authentication = Authentication(
        AuthSettings(), AcceptedCredentials(certificate_rules=rules), dict, None, ManualClock(NOW)
    )
    with pytest.raises(Unauthenticated):
        await authentication.authenticate(Credentials(certificate=long), "192.0.2.1")


async def test_an_expired_certificate_is_refused_and_a_wrong_token_is_not_saved_by_a_certificate() -> None:
    rules = [CertificateRule.parse("subject CN=([^,]+),.* => user:{1}")]
    authentication = Authentication(
        AuthSettings(), AcceptedCredentials(certificate_rules=rules), dict, None, ManualClock(NOW)
    )
    ended = replace(LOADER, expires_at_us=NOW)
    for credentials in (Credentials(certificate=ended), Credentials("wrong", LOADER)):
        with pytest.raises(Unauthenticated):
            await authentication.authenticate(credentials, "192.0.2.1")


@pytest.mark.parametrize(
    "rule", ["", "CN=x => user:x", "subject x => group:ops", "subject x", "SAN ( => user:x", "subject x => user:{1}"]
)
def test_a_rule_that_cannot_be_used_is_refused(rule: str) -> None:
    with pytest.raises(Invalid):
        CertificateRule.parse(rule)


async def test_the_cluster_token_makes_a_broker_and_nothing_like_it_does() -> None:
    authentication = Authentication(AuthSettings(), AcceptedCredentials(cluster_token=TOKEN), dict, None, ManualClock())
    assert (await authentication.authenticate(Credentials(TOKEN), "192.0.2.1")).principal.is_broker
    for wrong in (TOKEN[:-1], TOKEN + "0", TOKEN.upper()):
        with pytest.raises(Unauthenticated):
            await authentication.authenticate(Credentials(wrong), "192.0.2.2")
    without = Authentication(AuthSettings(), AcceptedCredentials(), dict, None, ManualClock())
    for nothing in (Credentials(""), Credentials("x")):
        with pytest.raises(Unauthenticated):
            await without.authenticate(nothing, "192.0.2.1")
    assert TOKEN not in repr(AcceptedCredentials(cluster_token=TOKEN)) + repr(Credentials(TOKEN))


def test_only_so_many_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "ADDRESSES_MAX", 10)
    counted = AddressFailures(ManualClock(), 20, 30.0)
    for number in range(1000):
        counted.add(f"10.0.{number // 250}.{number % 250}")
    assert len(counted) == 10


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(path, SystemClock())
    try:
        yield store
    finally:
        await store.close()


# -- the first key -----------------------------------------------------------------------------------------------------


async def test_the_first_key_is_made_once_also_by_two_brokers_and_after_it_was_revoked(tmp_path: Path) -> None:
    clock, directories = ManualClock(), [tmp_path / "a", tmp_path / "b"]
    for one in directories:
        one.mkdir()
    async with open_store(tmp_path / "metadata.db") as store:
        brokers = [SecurityStore(store, clock, AccessRules()) for _ in directories]
        for broker in brokers:  # both have read that there is none
            await broker.load()
        assert [await one.needs_first_key() for one in brokers] == [True, True]
        for broker, directory in zip(brokers, directories, strict=True):
            await create_first_key(broker, clock, OsDisk(), directory)
        (file,) = [one / "admin-key" for one in directories if (one / "admin-key").exists()]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        found = find_identity(file.read_text().strip(), brokers[0].keys, clock.now_us())
        assert found is not None and found.principal.id == "user:admin"
        late, record = new_key(ALICE, NOW)
        assert await brokers[1].create_first_key(late.key.id, record) is False  # it had read that there is none
        await brokers[0].key_table.delete(found.key_id)
        file.unlink()
        again = SecurityStore(store, clock, AccessRules())
        await again.load()
        await create_first_key(again, clock, OsDisk(), directories[0])
        assert not again.keys and not file.exists()


async def test_a_cluster_that_has_keys_gets_no_first_key_even_when_they_are_gone(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "metadata.db") as store:
        access = SecurityStore(store, clock, AccessRules())
        await access.load()
        new, record = new_key(ALICE, NOW)
        await access.key_table.create(new.key.id, record)
        await create_first_key(access, clock, OsDisk(), tmp_path)
        await access.key_table.delete(new.key.id)
        await create_first_key(access, clock, OsDisk(), tmp_path)
        assert not access.keys and not (tmp_path / "admin-key").exists()


# -- what is refused at the start --------------------------------------------------------------------------------------


def refused(**auth: Any) -> str:
    given = {f"auth.{name}": value for name, value in auth.items()}
    host = given.pop("auth.host", "127.0.0.1")
    url = given.pop("auth.url", "")
    settings = Settings.load(None, {}, {"auth.enabled": True, "server.host": host, "metadata.url": url, **given})
    with pytest.raises(DanubeError) as raised:
        check_settings(settings)
    assert isinstance(raised.value, Refused | Invalid)
    return raised.value.message


def test_what_is_not_safe_is_refused_with_the_remedy(tmp_path: Path) -> None:
    assert "auth.allow_plaintext" in refused(host="0.0.0.0")
    check_settings(
        Settings.load(None, {}, {"auth.enabled": True, "server.host": "0.0.0.0", "auth.allow_plaintext": 1 > 0})
    )
    check_settings(Settings.load(None, {}, {"server.host": "0.0.0.0"}))
    secret = tmp_path / "secret"
    assert "cannot be read: No such file" in refused(secret_file=secret)
    secret.write_text(TOKEN)
    secret.chmod(0o640)
    said = refused(secret_file=secret)
    assert f"chmod 600 {secret}" in said and "auth.allow_readable_files" in said and TOKEN not in said
    allowed = {"auth.enabled": True, "auth.secret_file": secret, "auth.allow_readable_files": True}
    check_settings(Settings.load(None, {}, allowed))
    secret.chmod(0o600)
    check_settings(Settings.load(None, {}, {"auth.enabled": True, "auth.secret_file": secret}))
    assert "choose one" in refused(secret=TOKEN, secret_file=secret)
    assert "fewer than 32 bytes" in refused(secret="short") and "short" not in refused(secret="short")
    assert "auth.issuer and auth.audience" in refused(jwks_url="https://issuer.example/keys")
    assert "32 to" in refused(cluster_token="too-short")
    assert "auth.cluster_token_file" in refused(url="etcd://127.0.0.1:2379/danube")
    assert "no rule for certificates" in refused(certificate_rules="CN=x")


def test_a_super_user_that_nobody_has_named_is_warned_of_where_its_name_can_be_shown() -> None:
    def by_default(**given: object) -> bool:
        return is_super_user_by_default(
            Settings.load(None, {}, {"auth.enabled": True} | {f"auth.{name}": one for name, one in given.items()})
        )

    rule = "subject CN=(.*) => user:{1}"
    assert by_default(certificate_rules=rule) and by_default(secret=TOKEN)
    assert by_default(jwks_url="https://issuer.example/keys")
    assert not by_default()  # only API keys, of which the first one is made for it
    assert not by_default(secret=TOKEN, super_users="user:admin")
    assert not by_default(secret=TOKEN, super_users="")


def test_credentials_that_are_configured_without_authentication_are_named() -> None:
    secrets = {
        "auth.secret": TOKEN,
        "auth.cluster_token": TOKEN,
        "auth.certificate_rules": "subject CN=(.*) => user:{1}",
    }
    unused = ["auth.secret", "auth.certificate_rules", "auth.cluster_token"]
    assert unused_credentials(Settings.load(None, {}, secrets).auth) == unused
    assert unused_credentials(Settings.load(None, {}, {}).auth) == []
    check_settings(Settings.load(None, {}, secrets))  # it starts, with a warning


def test_files_with_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    file, webhook, key = tmp_path / "danube.toml", tmp_path / "webhook", tmp_path / "key.pem"
    webhook.write_text(TOKEN)
    key.write_text("a key")
    contents = {
        "auth.secret": f'[auth]\nenabled = true\nsecret = "{TOKEN}"',
        "storage.options": f'[auth]\nenabled = true\n[storage]\noptions = {{ secret_access_key = "{TOKEN}" }}',
        "metadata.password": f'[auth]\nenabled = true\n[metadata]\npassword = "{TOKEN}"',
        "http.webhooks": f'[auth]\nenabled = true\n[http.webhooks.a]\ntopic = "/default/a"\nsecret = "{TOKEN}"',
        "http.webhooks.a.secret_file": "[auth]\nenabled = true\n[http.webhooks.a]\n"
        f'topic = "/default/a"\nsecret_file = "{webhook}"',
        "metadata.key_file": f'[metadata]\nca_file = "x"\ncert_file = "x"\nkey_file = "{key}"',
    }
    for name, content in contents.items():
        file.write_text(content)
        for mode in (0o640, 0o604):
            for one in (file, webhook, key):
                one.chmod(mode)
            with pytest.raises(Refused) as raised:
                check_settings(Settings.load(file))
            said = raised.value.message
            assert name in said and "chmod 600" in said and "allow_" in said and TOKEN not in said
            allowed = {"auth.allow_readable_files": True, "tls.allow_unsafe_key_mode": True}
            check_settings(Settings.load(file, {}, allowed))
        for one in (file, webhook, key):
            one.chmod(0o600)
        check_settings(Settings.load(file))
    file.write_text('[auth]\nenabled = true\n[storage]\nurl = "s3://bucket"\noptions = { region = "x" }')
    file.chmod(0o644)
    check_settings(Settings.load(file, {"DANUBE_AUTH_SECRET": TOKEN}))  # there is no secret in it
