"""Marked secrets are given in every place that takes one, and found in none that shows something."""

from __future__ import annotations

import base64
import http.server
import os
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import grpc
import jwt
import pytest
from brokers import BrokerProcess
from grpc_peer import method_of
from marked_secrets import MARK, World, forms, leaks, marked
from tls_files import Authority

import pydanube
from exhaustive import several
from pydanube.broker.security.authentication import AcceptedCredentials
from pydanube.broker.security.jwks import JwksUrl
from pydanube.client.connection.credentials import ClientCredentials
from pydanube.core.identity import Credentials
from pydanube.metadata.etcd.place import parse_members
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.settings.kinds import MAY_HOLD_SECRETS, show_url
from pydanube.model.webhooks import Webhook
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.store_address import StoreAddress
from pydanube.runtime.spans import _secrets_of
from pydanube.settings import Settings

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("secrets")]  # one broker for all

TOPIC = "/default/orders"
SECRET = marked("This")

# -- settings ----------------------------------------------------------------------------------------------------------

GIVEN: dict[str, str] = {
    "auth.secret": SECRET,
    "auth.cluster_token": SECRET,
    "metadata.password": SECRET,
    "storage.options": f"access_key_id={SECRET},secret_access_key={SECRET},account_key={SECRET},password={SECRET},"
    f"sas={SECRET},connection_string=a;b={SECRET},authorization={SECRET},default_headers=X-Api: {SECRET},"
    f"endpoint=https://user:{SECRET}@store.example?a={SECRET},proxy_url=http://{SECRET}@proxy.example:3128",
    "http.webhooks": f"shop topic=/default/sales secret={SECRET}",
    "storage.url": f"s3://user:{SECRET}@bucket/prefix?token={SECRET}",
    "auth.jwks_url": f"https://user:{SECRET}@issuer.example/keys?api_key={SECRET}#{SECRET}=x",
    "tracing.endpoint": f"https://user:{SECRET}@collector.example/v1/traces?key={SECRET}",
}
"""Every setting that may hold a secret, with one."""


def test_every_kind_of_setting_that_may_hold_a_secret_is_tried() -> None:
    from pydanube import settings

    hiding = {key for key, one in settings._KNOWN.items() if isinstance(one.metadata["kind"], MAY_HOLD_SECRETS)}
    assert hiding == {*GIVEN, "metadata.url"}  # which is refused with a password: see below
    likely = ("secret", "password", "token", "key")
    names = {key for key in settings._KNOWN if any(one in key.rpartition(".")[2] for one in likely)}
    assert {key for key in names - hiding if not key.endswith(("_file", "_mode"))} == set()


def test_no_setting_shows_its_secret() -> None:
    settings = Settings.load(None, {}, GIVEN)
    for shown in (repr(settings), str(settings), str(settings.describe()), str(settings.sources)):
        assert MARK not in shown
    described = {one.key: one.value for one in settings.describe()}
    assert described["storage.url"] == "s3://***@bucket/prefix?token=***"
    assert described["auth.secret"] == "***"


WRONG: list[dict[str, Any]] = [
    {"auth.secret": [SECRET]},
    {"auth.cluster_token": {"value": SECRET}},
    {"metadata.password": [SECRET]},
    {"storage.options": SECRET},
    {"storage.options": f"access_key_id:{SECRET}"},
    {"storage.options": {"secret_access_key": [SECRET]}},
    {"storage.options": {SECRET: 1.5}},
    {"storage.url": f"user:{SECRET}@bucket"},
    {"storage.url": [SECRET]},
    {"metadata.url": f"etcd://root:{SECRET}@127.0.0.1:2379/danube"},
    {"metadata.url": f"etcd://root:x/{SECRET}@127.0.0.1:2379/danube"},
    {"metadata.url": f"redis://root:{SECRET}@127.0.0.1"},
    {"metadata.url": [SECRET]},
    {"auth.jwks_url": f"//user:{SECRET}@issuer.example"},
    {"tracing.endpoint": f"grpc://user:{SECRET}@collector"},
    {"http.webhooks": f"shop topic=/default/sales secret=two {SECRET}"},
    {"http.webhooks": f"shop topic=/default/sales secret=two;{SECRET}"},
    {"http.webhooks": f"shop topic=/default/sales secret:{SECRET}"},
    {"http.webhooks": {"shop": SECRET}},
    {"http.webhooks": {"shop": {"topic": "/default/sales", "secret": [SECRET]}}},
    {"http.webhooks": {"shop": {"topic": "no topic", "secret": SECRET}}},
    {"http.webhooks": {"shop": {"topic": "/default/sales", "secret": SECRET, "secret_file": "x"}}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: f"{next(iter(one))}-{type(next(iter(one.values()))).__name__}")
def test_a_wrong_setting_is_named_without_its_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as raised:
        Settings.load(None, {}, wrong)
    assert MARK not in shown_of(raised.value)
    assert next(iter(wrong)).rpartition(".")[2].rstrip("s") in raised.value.message


@pytest.mark.parametrize(
    "content",
    [
        f'auth = "{SECRET}"',
        f'secret = "{SECRET}"',
        f'[auth]\nsecret = "{SECRET}',
        f"[auth]\nsecret = {SECRET}",
        f'[auth]\nsecret = "{SECRET}"\nsecret = "{SECRET}"',
        f'[storage]\noptions = ["{SECRET}"]',
        f'[auth]\nsecret = "{SECRET}"\nunknown = "{SECRET}"',
    ],
)
def test_a_wrong_file_is_refused_without_what_it_holds(content: str, tmp_path: Path) -> None:
    file = tmp_path / "danube.toml"
    file.write_text(content)
    with pytest.raises(Invalid) as raised:
        Settings.load(file)
    assert MARK not in shown_of(raised.value) and str(file) in raised.value.message


def test_urls_are_shown_without_credentials_and_otherwise_whole() -> None:
    for url in ("", "file:///data/@objects", "s3://bucket/a@b", "redis://127.0.0.1:6379/0?prefix=danube"):
        assert show_url(url) == url
    assert show_url(f"s3://u:a/{SECRET}@b/c") == "s3://***@b/c"
    assert show_url(f"https://h/x?a={SECRET}&prefix=p&{SECRET}") == f"https://h/x?a=***&prefix=p&{SECRET}"


def shown_of(error: BaseException) -> str:
    """Everything that a program shows of an error."""
    return "".join([repr(error), str(error), *traceback.format_exception(error)])


# -- representations and errors of objects that hold secrets -----------------------------------------------------------


def test_objects_that_hold_a_secret_do_not_show_it() -> None:
    webhook = Webhook.parse("shop", {"topic": TOPIC, "secret": SECRET})
    place = replace(Settings.load(None, {}, {"metadata.url": "etcd://127.0.0.1"}).metadata_place, password=SECRET)
    client = pydanube.connect("danube://127.0.0.1:1", token=SECRET)
    objects = [
        Credentials(SECRET),
        AcceptedCredentials(SECRET.encode(), cluster_token=SECRET),
        webhook,
        place,
        client,
        client.producer(TOPIC),
        ClientCredentials(SECRET),
    ]
    for one in objects:
        assert MARK not in f"{one!r} {one}", type(one)


async def test_errors_of_urls_do_not_repeat_their_secret() -> None:
    for wrong in (
        f"https://u:{SECRET}@issuer.example/",
        f"https://u:{SECRET}@[issuer",
        f"http://h.example/?k={SECRET}",
    ):
        with pytest.raises(Invalid) as invalid:
            JwksUrl(wrong)
        assert MARK not in shown_of(invalid.value)
    with pytest.raises(DanubeError) as raised:
        await JwksUrl(f"http://127.0.0.1:1/keys?key={SECRET}")()
    assert MARK not in shown_of(raised.value) and "127.0.0.1:1/keys" in raised.value.message
    for url in (f"s3://u:{SECRET}@b", f"s3://{SECRET}@b", f"s3://[{SECRET}"):
        with pytest.raises(Invalid) as invalid:
            StoreAddress.parse(url).expect()
        assert MARK not in shown_of(invalid.value)
    with pytest.raises(Invalid) as invalid:
        StoreAddress.parse(f"s3://b/p?secret_access_key={SECRET}").expect()
    assert MARK not in shown_of(invalid.value)
    with pytest.raises(Invalid) as invalid:
        parse_members(f"etcd://u:{SECRET}@h")
    assert MARK not in shown_of(invalid.value)
    url = f"http://u:{SECRET}@127.0.0.1:1/v1?key={SECRET}2"
    assert MARK not in _secrets_of(url).scrub(f"cannot reach {url}, /v1?key={SECRET}2 with {SECRET}")


# -- a broker process --------------------------------------------------------------------------------------------------


class _Echo(http.server.BaseHTTPRequestHandler):
    """An object store that allows nothing, and repeats the request in its answer, as some do for debugging."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"<Error><Code>AccessDenied</Code><M>{self.headers['Authorization']}</M></Error>".encode()
        self.send_response(404 if self.command == "HEAD" else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - names of the library

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def refusing_store() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    running = threading.Thread(target=server.serve_forever)
    running.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        running.join()
        server.server_close()


def private(path: Path, content: str) -> str:
    path.touch(0o600)
    path.write_text(content)
    return str(path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[World]:
    """A broker that has every secret that a broker can have, and writes everything to its log."""
    here = tmp_path_factory.mktemp("secrets")
    pair = authority.issue("broker")
    names = ("HmacSecret", "ClusterToken", "EtcdPassword", "WebhookSecret", "WebhookFile", "AccessKey", "SecretKey")
    secrets = {one: marked(one) for one in names}
    secrets |= {f"TlsKeyLine{n}": one for n, one in enumerate(pair.key_file.read_text().splitlines()[1:-1])}
    hooks = (
        f"shop topic=/default/hooks scheme=token secret={secrets['WebhookSecret']}; "
        f"git topic=/default/hooks scheme=github secret_file={private(here / 'webhook', secrets['WebhookFile'])}"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")},
        "DANUBE_CONFIG_HOME": str(here / "config"),
        "DANUBE_LOGGING_LEVEL": "debug",
        "DANUBE_AUTH_ENABLED": "true",
        "DANUBE_AUTH_SECRET_FILE": private(here / "hmac", secrets["HmacSecret"]),
        "DANUBE_AUTH_CLUSTER_TOKEN": secrets["ClusterToken"],
        "DANUBE_METADATA_PASSWORD": secrets["EtcdPassword"],
        "DANUBE_HTTP_WEBHOOKS": hooks,
        "DANUBE_TLS_CERT_FILE": str(pair.cert_file),
        "DANUBE_TLS_KEY_FILE": str(pair.key_file),
        "DANUBE_STORAGE_SEGMENT_AGE_S": "0",
    }
    with refusing_store() as store, pytest.MonkeyPatch.context() as patched:
        for name in [one for one in os.environ if one.startswith("DANUBE_")]:
            patched.delenv(name)
        options = {"access_key_id": secrets["AccessKey"], "secret_access_key": secrets["SecretKey"]}
        options |= {"endpoint": store, "region": "eu-central-1", "allow_http": "true"}
        storage = {
            "DANUBE_STORAGE_URL": "s3://bucket/prefix",
            "DANUBE_STORAGE_OPTIONS": ",".join(f"{name}={value}" for name, value in options.items()),
        }
        with BrokerProcess(here / "data", environment={**environment, **storage}) as broker:
            made = World(
                broker.directory,
                broker.log,
                f"danubes://127.0.0.1:{broker.port}",
                broker.http_port,
                (broker.grpc_port, broker.admin_port),
                ssl.create_default_context(cafile=str(authority.ca_file)),
                {**environment, **storage, "DANUBE_TLS_CA_FILE": str(authority.ca_file)},
                secrets,
            )
            made.secrets["AdminKey"] = (here / "data" / "admin-key").read_text().strip().split("_", 2)[2]
            made.allowed["file admin-key"] = {"AdminKey"}
            with pydanube.connect_blocking(made.url, token=admin_key(made), tls_ca_file=authority.ca_file) as client:
                client.access.create_binding("service_account:webhook-shop", ["admin"], "/default")
            yield made


def admin_key(world: World) -> str:
    return (world.data_dir / "admin-key").read_text().strip()


def token(world: World, seconds: int, name: str = "admin", secret: str = "") -> str:
    """A JWT of this broker; its signature is marked as a secret."""
    ends = SystemClock().now_us() // 1_000_000 + seconds
    claims = {"exp": ends, "principal_type": "user", "principal_name": name, "n": len(world.secrets)}
    made = jwt.encode(claims, secret or world.secrets["HmacSecret"], "HS256")
    world.secrets[f"Jwt{len(world.secrets)}"] = made.rpartition(".")[2]
    return made


def tokens(world: World) -> list[tuple[str, bool]]:
    """Right and wrong ones."""
    world.secrets["WrongKey"] = marked("WrongKey")[:43]
    wrong = [f"dnb_0123456789abcdef_{world.secrets['WrongKey']}", token(world, -60), token(world, 60, secret="x" * 32)]
    wrong.append(token(world, 60, "two words"))
    return [(admin_key(world), True), (token(world, 600), True), *((one, False) for one in wrong)]


async def test_native_callers(world: World, authority: Authority) -> None:
    for shown, works in [*tokens(world), (world.secrets["ClusterToken"], True), (marked("ClusterTokex"), False)]:
        arguments = {"token": shown, "tls_ca_file": authority.ca_file, "timeout": 60}
        try:
            async with pydanube.connect(world.url, **arguments) as client:  # type: ignore[arg-type]
                world.tell("whoami", await client.access.whoami(), repr(client))
                if shown == admin_key(world):
                    await _work(world, client)
            assert works
        except DanubeError as error:
            assert not works
            world.tell("native errors", shown_of(error))
    world.secrets["ClusterTokex"] = marked("ClusterTokex")
    logged = world.log.read_text()
    assert "auth.failed" in logged and "native.connected" in logged  # everything is logged
    assert "AccessDenied" in logged and "Credential=***" in logged  # also what the object store answers
    assert "unauthenticated" in (world.data_dir / "audit.log").read_text()  # a file of the directory that is searched
    assert leaks(world) == []


async def _work(world: World, client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"one")
    made = await client.access.create_key("user:bob", comment="for the test")
    world.secrets[f"NewKey{made.key.id}"] = made.secret.split("_", 2)[2]
    world.tell("new key", made)
    world.tell("keys", await client.access.keys(), await client.describe_broker())
    with pytest.raises(DanubeError) as raised:
        await client.access.revoke_key(made.secret)
    world.tell("native errors", shown_of(raised.value))
    with pytest.raises(DanubeError) as raised:
        await client.upload_storage(TOPIC)
    world.tell("native errors", shown_of(raised.value))


def test_http_callers(world: World) -> None:
    paths = ["/metrics", "/openapi.json", "/healthz", "/readyz", "/api/v1/brokers", "/api/v1/topics", "/api/v1/storage"]
    paths += ["/api/v1/access/keys", "/api/v1/access/whoami", "/schema-registry/subjects", "/docs", "/nowhere"]
    for shown, works in tokens(world):
        basic = base64.b64encode(f"anybody:{shown}".encode()).decode()
        for headers in ({"Authorization": f"Bearer {shown}"}, {"X_Api_Key": shown}):
            for path in paths:
                status, _ = world.request("GET", path, **headers)
                assert status in ((200, 404) if works else (200, 401)), path
        world.request("GET", "/schema-registry/subjects", Authorization=f"Basic {basic}")
        world.request("GET", f"/api/v1/topics?token={shown}&api_key={shown}", Authorization=shown)
        world.request("POST", "/api/v1/topics", b"{not json", Authorization=f"Bearer {shown}")
        world.request("DELETE", f"/api/v1/access/keys/{shown[:40]}", Authorization=f"Bearer {shown}")
    assert leaks(world) == []


def test_webhooks(world: World) -> None:
    right, wrong = world.secrets["WebhookSecret"], marked("WrongWebhook")
    world.secrets["WrongWebhook"] = wrong
    for shown in (right, wrong):
        status, _ = world.request("POST", "/webhooks/shop", b"sale", Authorization=f"Bearer {shown}")
        assert status == (200 if shown == right else 401)
        world.request("POST", "/webhooks/shop", b"sale", X_Webhook_Token=shown)
        world.request("POST", "/webhooks/unknown", b"sale", X_Webhook_Token=shown)
        world.request("POST", "/webhooks/git", b"sale", X_Hub_Signature_256=f"sha256={shown}")
    assert leaks(world) == []


async def test_grpc_callers(world: World, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
    data, admin = world.grpc_ports
    for port, path in ((data, "danube.Discovery/TopicPartitions"), (admin, "danube_admin.BrokerAdmin/ListBrokers")):
        method = method_of(path)
        request = method.request(topic=TOPIC) if port == data else method.request()
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            for shown, works in tokens(world)[:3]:
                for metadata in ([("authorization", f"Bearer {shown}")], [("authorization", shown)]):
                    call = channel.unary_unary(method.path)
                    try:
                        world.tell("gRPC", await call(request.SerializeToString(), timeout=30, metadata=metadata))
                        assert works and metadata[0][1] != shown
                    except grpc.aio.AioRpcError as error:
                        world.tell("gRPC errors", error.details(), repr(error.trailing_metadata()), error.code())
    assert leaks(world) == []


def test_commands(world: World, tmp_path: Path) -> None:
    key, wrong = admin_key(world), f"dnb_0123456789abcdef_{marked('WrongKey')[:43]}"
    world.secrets["WrongKey"] = marked("WrongKey")[:43]
    here = {"DANUBE_URL": world.url, "DANUBE_TLS_CA_FILE": world.environment["DANUBE_TLS_CA_FILE"]}
    for shown, code in ((key, 0), (wrong, 1)):
        file = private(tmp_path / f"token-{code}", shown)
        variables = [{"DANUBE_TOKEN": shown}, {"DANUBE_TOKEN_FILE": file}] if code else [{"DANUBE_API_KEY": shown}]
        for one in variables:
            assert world.danube("auth", "whoami", **here, **one).returncode == code
        added = world.danube("profile", "add", f"p{code}", "--url", world.url, "--api-key", "-", stdin=shown)
        assert added.returncode == 0, added.stderr
        assert world.danube("--profile", f"p{code}", "auth", "keys", "list", **here).returncode == code
    world.danube("profile", "list")
    world.danube("profile", "list", "--json")
    for options in (["--token", wrong], [f"--api-key={wrong}"]):
        refused = world.danube("auth", "whoami", *options, **here)
        assert refused.returncode == 2
        world.told.pop(f"danube auth whoami {' '.join(options)}")
        assert world.secrets["WrongKey"] not in refused.stdout + refused.stderr
    world.told.pop("arguments of processes")  # of the commands just refused
    assert leaks(world) == []


def test_commands_that_show_settings(world: World, tmp_path: Path) -> None:
    for arguments in (["config", "show"], ["config", "show", "--json"], ["config", "validate"]):
        assert world.danube(*arguments, keeps_broker_settings=True).returncode == 0
    bundle = tmp_path / "bundle.zip"
    collect = ["debug", "bundle", str(bundle), "--log", str(world.log), "--url", world.url]
    collected = world.danube(*collect, keeps_broker_settings=True, DANUBE_TOKEN=admin_key(world))
    assert (collected.returncode, collected.stderr) == (0, "")
    with ZipFile(bundle) as archive:
        names = set(archive.namelist())
        assert names >= {"versions.json", "settings.json", "status.json", "metrics.txt", "log.txt"}
        world.tell("bundle", *(archive.read(name) for name in names))
    found = world.danube("doctor", "--no-sync", "--data-dir", str(tmp_path), keeps_broker_settings=True)
    assert "s3://bucket/prefix" in found.stdout
    restored = world.danube("storage", "restore", "--data-dir", str(tmp_path / "new"), keeps_broker_settings=True)
    assert restored.returncode == 1
    etcd = {"DANUBE_METADATA_USER": "root", "DANUBE_METADATA_TIMEOUT_MS": "1000"}
    places = ["--from", "etcd://127.0.0.1:1/danube", "--to", str(tmp_path / "metadata.db")]
    copied = world.danube("metadata", "copy", *places, keeps_broker_settings=True, **etcd)
    assert "127.0.0.1:1" in copied.stderr
    assert copied.returncode == 1
    assert leaks(world) == []


def test_processes_that_a_command_starts_get_no_secret_as_argument(world: World) -> None:
    here = {"DANUBE_URL": world.url, "DANUBE_TLS_CA_FILE": world.environment["DANUBE_TLS_CA_FILE"]}
    bench = ["bench", "--url", world.url, "--count", "1000", "--no-baselines"]
    done = world.danube(*bench, **here, DANUBE_TOKEN=admin_key(world))
    seen = world.told["arguments of processes"]
    assert b"pydanube.cli.bench.worker" in seen, done.stderr
    assert leaks(world) == []


@pytest.mark.parametrize(
    "changes",
    several(
        [{"DANUBE_AUTH_SECRET": "Short" + MARK[:3]}, {"DANUBE_STORAGE_URL": "with password"}],
        [
            {"DANUBE_AUTH_SECRET": "Short" + MARK[:3]},
            {"DANUBE_STORAGE_URL": "with password"},
            {"DANUBE_AUTH_SECRET": "both"},
            {"DANUBE_AUTH_CLUSTER_TOKEN": "with blanks"},
            {"DANUBE_AUTH_SECRET_FILE": "readable"},
            {"DANUBE_METADATA_URL": "etcd://127.0.0.1:1/danube", "DANUBE_METADATA_TIMEOUT_MS": "1000"},
            {"DANUBE_STORAGE_URL": "opendal+s3://bucket"},
            {"DANUBE_STORAGE_URL": "redis://127.0.0.1:1/0"},
            {"DANUBE_TLS_KEY_FILE": "garbage"},
            {"DANUBE_HTTP_WEBHOOKS": "garbage"},
        ],
    ),
    ids=lambda one: "-".join(one.items().__iter__().__next__()),
)
def test_a_refused_start_shows_no_secret(world: World, changes: dict[str, str], tmp_path: Path) -> None:
    values = {
        "both": marked("Both"),
        "with blanks": f"{marked('Blanks')} blank",
        "with password": f"s3://user:{marked('Url')}@bucket",
        "readable": str(tmp_path / "readable"),
        "garbage": str(tmp_path / "garbage") if "DANUBE_TLS_KEY_FILE" in changes else f"shop {marked('Hook')}",
    }
    world.secrets |= {one: marked(one) for one in ("Both", "Blanks", "Url", "Readable", "Garbage", "Hook")}
    (tmp_path / "readable").write_text(marked("Readable"))
    private(tmp_path / "garbage", f"-----BEGIN PRIVATE KEY-----\n{marked('Garbage')}\n-----END PRIVATE KEY-----\n")
    given = {name: values.get(value, value) for name, value in changes.items()}
    ports = [f"--{one}port=0" for one in ("", "grpc-", "admin-", "http-")]
    started = world.danube("serve", "--data-dir", str(tmp_path / "data"), *ports, keeps_broker_settings=True, **given)
    assert started.returncode == 1 and "danube: " in started.stderr
    assert leaks(world) == []


# -- the search itself -------------------------------------------------------------------------------------------------


def test_the_search_finds_a_secret_in_every_place_and_form(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    secret = marked("Searched/+ ")
    for number, form in enumerate(forms(secret)):
        place = tmp_path / "data" / f"file-{number}"
        log = tmp_path / "log"
        log.write_bytes(b"")
        found = World(tmp_path / "data", log, "", 0, (), ssl.create_default_context(), {}, {"It": secret})
        assert leaks(found) == []
        place.write_bytes(b"before " + form + b" after")
        assert len(leaks(found)) == 1
        place.unlink()
        log.write_bytes(form)
        assert len(leaks(found)) == 1
        log.write_bytes(b"")
        found.tell("asked", form)
        assert len(leaks(found)) == 1
