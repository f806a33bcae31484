"""Settings: where values come from, what is allowed, and what people are told when something is not."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.metadata.etcd.place import EtcdPlace, TlsFiles
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX, MIB
from pydanube.model.settings.kinds import ADDRESS, HOST, PathKind
from pydanube.model.settings.sections import LogSettings
from pydanube.model.text import Flag, Number, Size
from pydanube.settings import SettingDescription, Settings, environment_name

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "danube.toml"


def refusal(path: Path | None = None, environ: dict[str, str] | None = None, **overrides: object) -> str:
    """What is said when these are loaded."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    with pytest.raises(Invalid) as raised:
        Settings.load(path, environ or {}, dotted)
    return raised.value.message


def test_nothing_needs_to_be_said() -> None:
    settings = Settings.load(None, {}, {})
    assert settings == Settings()
    assert settings.server.data_dir == Path("./danube-data")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 6655)
    assert (settings.server.grpc_port, settings.server.admin_port, settings.server.http_port) == (6650, 50051, 8650)
    assert settings.log.file_bytes == 128 * MIB
    assert settings.limits.message_bytes_max == MESSAGE_BYTES_MAX
    assert settings.topics.ack_level is None
    assert settings.producers.remembered_s == 604_800
    assert settings.sources == {}


def test_the_command_line_goes_before_the_environment_before_the_file_before_the_default(file: Path) -> None:
    file.write_text("[cache]\ntail_bytes = '1MiB'\n[log]\nfile_bytes = '64MiB'\n[server]\nport = 1\nhost = 'a'\n")
    environ = {"DANUBE_LOG_FILE_BYTES": "32MiB", "DANUBE_SERVER_PORT": "2", "HOME": "/root", "DANUBE_URL": "elsewhere"}
    settings = Settings.load(file, environ, {"server.port": 3, "server.host": None})
    assert settings.cache.tail_bytes == MIB
    assert settings.log.file_bytes == 32 * MIB
    assert (settings.server.host, settings.server.port) == ("a", 3)
    described = {one.key: one for one in settings.describe()}
    assert described["cache.tail_bytes"].source == f"file {file}"
    assert described["log.file_bytes"].source == "environment DANUBE_LOG_FILE_BYTES"
    assert described["server.port"].source == "command line"
    assert described["server.grpc_port"].source == "default"
    assert (described["log.file_bytes"].value, described["log.file_bytes"].default) == ("32MiB", "128MiB")


def test_every_setting_can_be_given_in_every_way(file: Path) -> None:
    chosen = {
        "server.data_dir": "/data",
        "server.host": "::",
        "server.advertised": "broker.example.net:6655",
        "server.advertised_inside": "10.0.0.7:6655",
        "server.inside": "10.0.0.0/8,fd00::/8",
        "server.name": "node-1",
        "server.http": "false",
        "grpc.data": "false",
        "grpc.admin": "false",
        "grpc.advertised": "broker.example.net:6650",
        "http.advertised": "broker.example.net:8650",
        "http.cors_origins": "https://example.com,http://localhost:3000",
        "http.webhooks": "shop topic=/default/sales scheme=hmac window_s=60 secret_file=/run/shop headers=x-kind",
        "http.allowed_hosts": "broker.example.net,10.0.0.7",
        "log.directory": "/wal",
        "metadata.path": "/metadata/one.db",
        "metadata.url": "etcd://10.0.0.1:2379,10.0.0.2:2379/danube",
        "metadata.tls": "true",
        "metadata.ca_file": "/etc/danube/ca.pem",
        "metadata.cert_file": "/etc/danube/cert.pem",
        "metadata.key_file": "/etc/danube/key.pem",
        "metadata.user": "danube",
        "metadata.password": "***",
        "cluster.zone": "rack-1",
        **{
            f"{section}.{key}": value
            for section in ("tls", "tls_native", "tls_grpc", "tls_admin", "tls_http")
            for key, value in {
                "cert_file": f"/etc/{section}/cert.pem",
                "key_file": f"/etc/{section}/key.pem",
                "client_ca_file": f"/etc/{section}/clients.pem",
                "client_certificates": "required",
                **({"enabled": "false"} if section != "tls" else {"peer_ca_file": "/etc/tls/peers.pem"}),
                **({"allow_unsafe_key_mode": "true"} if section == "tls" else {}),
            }.items()
        },
        "auth.enabled": "true",
        "auth.super_users": "user:root,service_account:setup",
        "auth.jwks_file": "/etc/danube/jwks.json",
        "auth.jwks_url": "https://example.com/jwks",
        "auth.jwks_ca_file": "/etc/danube/jwks-ca.pem",
        "auth.jwks_allow_plain": "true",
        "auth.issuer": "https://example.com/",
        "auth.audience": "danube",
        "auth.name_claim": "email",
        "auth.groups_claim": "realm_access.roles",
        "auth.secret": "***",
        "auth.secret_file": "/run/secrets/danube",
        "auth.certificate_rules": "subject CN=([^,]+) => user:{1}; SAN DNS:(.*) => service_account:{1}",
        "auth.cluster_token": "***",
        "auth.cluster_token_file": "/run/secrets/cluster",
        "auth.allow_plaintext": "true",
        "auth.allow_readable_files": "true",
        "audit.enabled": "true",
        "audit.to": "topic",
        "audit.file": "/var/log/danube/audit.log",
        "audit.topic": "/ops/audit",
        "audit.sessions": "false",
        "topics.auto_create": "false",
        "topics.ack_level": "written",
        "storage.url": "s3://bucket/prefix",
        "storage.options": "region=eu-west-1,endpoint=http://127.0.0.1:9000",
        "storage.upload_bytes_per_s": "1MiB",
        "storage.log_bytes_max": "1GiB",
        "storage.log_keep_bytes": "2GiB",
        "metrics.topics": "false",
        "tracing.endpoint": "http://127.0.0.1:4318/v1/traces",
        "tracing.service": "broker",
        "logging.level": "debug",
        "logging.json": "true",
    }
    for one in Settings().describe():
        if one.key not in chosen:
            number, unit = (one.default[:-3], one.default[-3:]) if one.default.endswith("iB") else (one.default, "")
            chosen[one.key] = f"{int(number) - 1}{unit}"
    sections: dict[str, list[str]] = {}
    for key, value in chosen.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f'{name} = "{value}"')
    file.write_text("\n".join(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items()))
    from_file = Settings.load(file, {}, {})
    from_environ = Settings.load(None, {environment_name(key): value for key, value in chosen.items()}, {})
    from_command_line = Settings.load(None, {}, chosen)
    assert from_file == from_environ == from_command_line
    assert {one.key: one.value for one in from_file.describe()} == chosen
    assert all(one.value != one.default and one.source != "default" for one in from_file.describe())


def test_values_of_a_file_may_have_their_own_types(file: Path) -> None:
    file.write_text("[log]\nfile_bytes = 67108864\n[topics]\nauto_create = false\noffset_block = 10\n")
    settings = Settings.load(file, {}, {})
    assert (settings.log.file_bytes, settings.topics.auto_create, settings.topics.offset_block) == (64 * MIB, False, 10)


def test_the_options_of_a_store_are_a_table_and_its_secrets_are_not_shown(file: Path) -> None:
    file.write_text(
        '[storage]\nurl = "redis://me:hidden@cache:6379/0"\n'
        '[storage.options]\nregion = "eu"\nsecret_access_key = "hidden"\nallow_http = true\n'
    )
    settings = Settings.load(file, {}, {})
    assert settings.storage.options == {"region": "eu", "secret_access_key": "hidden", "allow_http": "true"}
    shown = {one.key: one.value for one in settings.describe()}
    assert shown["storage.options"] == "region=eu,secret_access_key=***,allow_http=true"
    assert shown["storage.url"] == "redis://***@cache:6379/0"


def test_metadata_is_in_the_etcd_of_the_url_and_its_password_is_not_shown() -> None:
    environ = {"DANUBE_METADATA_PASSWORD": "hidden", "DANUBE_METADATA_USER": "danube"}
    settings = Settings.load(None, environ, {"metadata.url": "etcd://a:1,[::1]/orders"})
    place = settings.metadata_place
    assert isinstance(place, EtcdPlace)
    assert (place.members, place.prefix, place.tls) == (("a:1", "[::1]:2379"), "orders", None)
    assert (place.user, place.password, place.timeout_s) == ("danube", "hidden", 10.0)
    assert str(place) == "etcd://a:1,[::1]:2379/orders"
    shown = {one.key: one.value for one in settings.describe()}
    assert shown["metadata.password"] == "***"
    assert "hidden" not in repr(place)
    plain = Settings.load(None, {}, {"metadata.url": "etcd://a", "metadata.ca_file": "/ca.pem"}).metadata_place
    assert isinstance(plain, EtcdPlace)
    assert (plain.members, plain.prefix, plain.tls) == (("a:2379",), "danube", TlsFiles(ca=Path("/ca.pem")))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("zookeeper://a/b", "etcd://host:2379"),
        ("etcd://", "no address"),
        ("etcd://a:0/b", "no address"),
        ("etcd://a:65536/b", "no address"),
        ("etcd://a,,b/c", "no address"),
        ("etcd://a,a:2379/c", "once"),
        ("etcd://a/b/c", "prefix 'b/c'"),
        ("etcd://me:hidden@a/b", "DANUBE_METADATA_PASSWORD"),
    ],
)
def test_a_wrong_metadata_url_is_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        Settings.load(None, {}, {"metadata.url": url})
    assert "hidden" not in refused.value.message


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(Invalid, match="belong together"):
        Settings.load(None, {}, {"metadata.url": "etcd://a", "metadata.cert_file": "/cert.pem"})


def test_what_is_left_empty_follows_from_the_rest() -> None:
    settings = Settings.load(None, {}, {"server.data_dir": "/data"})
    assert settings.log_directory == Path("/data/wal")
    assert settings.metadata_path == Path("/data/metadata.db")
    chosen = {"log.directory": "/wal", "metadata.path": "/m.db"}
    settings = Settings.load(None, {}, chosen)
    assert (settings.log_directory, settings.metadata_path) == (Path("/wal"), Path("/m.db"))


def test_an_empty_variable_counts_as_not_set(file: Path) -> None:
    file.write_text("[server]\nport = 1\n")
    assert Settings.load(file, {"DANUBE_SERVER_PORT": ""}, {}).server.port == 1


def test_a_wrong_value_is_refused_with_its_key_its_source_and_what_is_allowed(file: Path) -> None:
    file.write_text('[server]\nport = "many"\n')
    assert refusal(file) == f"file {file}: server.port='many' is not allowed: use a whole number from 0 to 65535"
    assert refusal(environ={"DANUBE_LOGGING_LEVEL": "loud"}) == (
        "environment DANUBE_LOGGING_LEVEL: logging.level='loud' is not allowed:"
        " use one of debug, info, warning, error, critical"
    )
    assert refusal(cache__tail_bytes="64 parsecs") == (
        "command line: cache.tail_bytes='64 parsecs' is not allowed:"
        ' use a size from 0 to 1TiB, such as 4096 or "64MiB"'
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.port", -1),
        ("server.port", 65_536),
        ("server.port", True),
        ("server.port", 6655.0),
        ("server.port", "665x"),
        ("server.host", ""),
        ("server.host", "two words"),
        ("server.host", "line\nbreak"),
        ("server.advertised", "no-port"),
        ("server.advertised", "host:0"),
        ("server.advertised", "host:65536"),
        ("server.name", "ünode"),
        ("server.data_dir", ""),
        ("server.data_dir", "nul\0byte"),
        ("server.data_dir", 7),
        ("log.file_bytes", "1KiB"),
        ("log.file_bytes", "-1MiB"),
        ("log.file_bytes", "1.5GiB"),
        ("log.file_bytes", [1]),
        ("limits.message_bytes_max", "11MiB"),
        ("limits.connections_max", 0),
        ("topics.auto_create", "perhaps"),
        ("topics.auto_create", 2),
        ("topics.ack_level", "hope"),
        ("topics.ack_level", 2),
        ("logging.level", 3),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: object) -> None:
    with pytest.raises(Invalid, match=f"command line: {key}=.* is not allowed: use "):
        Settings.load(None, {}, {key: value})


def test_an_unknown_key_is_refused_with_the_nearest_known_one(file: Path) -> None:
    file.write_text("[log]\nfile_byte = 1\n")
    assert refusal(file) == f"file {file}: log.file_byte is not a known setting: did you mean log.file_bytes?"
    file.write_text("[server]\ntail_bytes = 1\n")
    assert "server.tail_bytes is not a known setting: did you mean cache.tail_bytes?" in refusal(file)
    file.write_text("[metadata]\nzzz = 1\n")
    assert "metadata.zzz is not a known setting: [metadata] has path" in refusal(file)
    file.write_text("[sever]\nport = 1\n")
    assert "sever is not a known section: did you mean [server]?" in refusal(file)
    file.write_text("port = 1\n")
    assert "port is not a known section: did you mean server.port?" in refusal(file)
    file.write_text("[xyzzy]\n")
    assert "xyzzy is not a known section: there are server, log," in refusal(file)
    assert refusal(environ={"DANUBE_SERVER_PROT": "1"}) == (
        "environment: DANUBE_SERVER_PROT is not a known setting: did you mean DANUBE_SERVER_PORT?"
    )
    assert "did you mean topics.auto_create?" in refusal(topics__autocreate=True)


def test_a_variable_of_another_command_is_passed_over_and_values_that_may_be_secrets_are_not_told() -> None:
    assert Settings.load(None, {"DANUBE_STORAGE_TOKEN": "a-long-random-word"}, {}) == Settings()
    assert "a-long-random-word" not in refusal(environ={"DANUBE_STORAGE_TOKENS": "a-long-random-word"})


def test_everything_that_is_wrong_is_said_at_once(file: Path) -> None:
    file.write_text("[server]\nport = -1\nprot = 2\n")
    said = refusal(file, {"DANUBE_LOG_LAZY_SYNC_MS": "0"}, cache__tail_bytes="x")
    for key in ("server.port=-1", "server.prot", "log.lazy_sync_ms='0'", "cache.tail_bytes='x'"):
        assert key in said


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert refusal(log__file_bytes="1MiB") == (
        "log.group_bytes_max=8MiB is larger than log.file_bytes=1MiB: make log.group_bytes_max at most log.file_bytes"
    )
    Settings.load(None, {}, {"log.file_bytes": "1MiB", "log.group_bytes_max": "1MiB"})
    assert refusal(storage__log_bytes_max="200MiB") == (
        "storage.log_bytes_max=200MiB has no room for two files of log.file_bytes=128MiB: raise it to twice that, "
        "lower log.file_bytes, or set it to 0 for no limit"
    )
    Settings.load(None, {}, {"storage.log_bytes_max": "256MiB", "storage.segment_bytes": "1MiB"})
    assert "limits.connections_per_address_max=1000" in refusal(limits__connections_max=999)
    assert "limits.publish_window_bytes=32MiB" in refusal(limits__pending_publish_bytes_max="16MiB")
    assert "limits.message_bytes_max=10MiB" in refusal(limits__pending_publish_bytes_max="1MiB")
    assert "slices.waiting_bytes_max=64MiB" in refusal(slices__unlisted_bytes_max="32MiB")
    assert "slices.slice_bytes=4MiB" in refusal(slices__unlisted_bytes_max="2MiB", slices__waiting_bytes_max="1MiB")
    assert refusal(server__http_port=6655) == (
        "server.http_port=6655 is server.port too: give every listener a port of its own, or 0 for a free one"
    )
    ports = {f"server.{name}": 0 for name in ("port", "grpc_port", "admin_port", "http_port")}
    assert Settings.load(None, {}, ports).server.http_port == 0


def test_a_file_that_cannot_be_used_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    assert refusal(file) == f"configuration file {file} cannot be read: No such file or directory"
    assert "cannot be read" in refusal(tmp_path)
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal(file)
    file.write_text("[server\nport = 1")
    assert "not valid TOML: " in refusal(file)
    assert "line 1" in refusal(file)
    file.write_text("server = 5\n")
    assert "server is not a table: write [server]" in refusal(file)


def test_holding_settings_means_that_they_are_valid() -> None:
    assert Settings(log=LogSettings(file_bytes="64MiB")).log.file_bytes == 64 * MIB  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=r"log\.file_bytes=-1 is not allowed"):
        Settings(log=LogSettings(file_bytes=-1))
    with pytest.raises(Invalid, match=r"log\.group_bytes_max=8MiB is larger"):
        Settings(log=LogSettings(file_bytes=MIB))
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary(), st.lists(st.integers())))
def test_no_value_makes_a_kind_do_anything_but_read_or_refuse(value: object) -> None:
    for kind in (Size(0, 100), Number(0, 100), Flag(), PathKind(), HOST, ADDRESS):
        try:
            first = kind.read(value)
        except ValueError:
            continue
        assert kind.read(kind.show(first)) == first  # type: ignore[arg-type]


def reference(described: list[SettingDescription]) -> str:
    """The tables of the documentation."""
    lines: list[str] = []
    section = ""
    for one in described:
        if one.key.partition(".")[0] != section:
            section = one.key.partition(".")[0]
            lines += ["", f"### {section}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        default = f"`{one.default}`" if one.default else "empty"
        lines.append(f"| `{one.key}`<br>`{one.env}` | {default} | {one.type} | {one.help} |")
    return "\n".join(lines).lstrip("\n") + "\n"


def test_a_secret_of_the_wrong_kind_is_refused_without_showing_it(file: Path) -> None:
    file.write_text("[auth]\nsecret = 271828182845\n")
    said = refusal(file)
    assert "auth.secret=***" in said and "271828182845" not in said


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    written, _, tail = rest.partition(END)
    wanted = reference(Settings().describe())
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{head}{BEGIN}{wanted}{END}{tail}", encoding="utf-8")
        written = wanted
    assert written == wanted, f"{PAGE.name} is behind the code: run UPDATE_DOCS=1 pytest {Path(__file__).name}"


def test_the_example_of_the_documentation_is_valid(file: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    file.write_text(example)
    settings = Settings.load(file, {}, {})
    assert len(settings.sources) == sum(len(table) for table in tomllib.loads(example).values()) > 5
