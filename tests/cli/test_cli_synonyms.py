"""What people type who come from other tools, and what a person at a terminal sees."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import click
import pytest
from commands import danube

from pydanube.cli.root import cli
from pydanube.cli.synonyms import COMMANDS, OPTIONS, Command, Group

pytestmark = pytest.mark.process


def every_command() -> list[tuple[str, click.Command]]:
    def walk(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
        inner = command.commands if isinstance(command, click.Group) else {}
        return [(name, command), *(one for word, sub in inner.items() for one in walk(f"{name} {word}", sub))]

    context = click.Context(cli)
    loaded = ((name, cli.get_command(context, name)) for name in cli.list_commands(context))
    return [one for name, command in loaded if command is not None for one in walk(name, command)]


def test_every_command_knows_synonyms():
    for name, command in every_command():
        wanted = Group if isinstance(command, click.Group) else Command
        assert isinstance(command, wanted), f"danube {name} is made by click alone: add cls={wanted.__name__}"


def test_every_synonym_stands_for_something():
    commands = dict(every_command())
    top = cli.list_commands(click.Context(cli))
    inner = {name.split()[-1] for name in commands if " " in name}
    options = {text for command in commands.values() for one in command.params for text in one.opts}
    for synonym, meanings in COMMANDS.items():
        assert synonym not in top, synonym
        for words in meanings:
            assert words[0] in inner | set(top), (synonym, words)
    assert set(OPTIONS) <= options


@pytest.fixture
def talk(served, tmp_path):
    """Runs a command with the broker and without the profiles of whoever runs the tests."""
    environment = {**os.environ, "DANUBE_CONFIG_HOME": str(tmp_path)}
    for namespace in ("syn", "syn-shop"):
        danube("namespaces", "create", namespace, url=served.url)
    return lambda *words, **more: danube(*words, environment=environment, url=served.url, **more)


def printed(done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_words_of_other_tools_do_the_same(talk):
    assert talk("pub", "/syn/menu", "espresso", "--header", "till=4").returncode == 0
    assert talk("publish", "/syn/menu", "--value", "cortado").returncode == 0
    assert printed(talk("sub", "/syn/menu", "-o", "beginning", "-n", "2")) == "espresso\ncortado\n"
    assert printed(talk("consume", "/syn/menu", "--from", "beginning", "-c", "1")) == "espresso\n"
    assert "/syn/menu\n" in printed(talk("ls"))
    assert "/syn/menu\n" in printed(talk("topics", "ls", "-n", "syn"))
    assert printed(talk("subscriptions", "list", "/syn/menu")) == printed(talk("groups", "ls", "/syn/menu"))
    assert printed(talk("topic", "rm", "/syn/menu", "--yes")) == "deleted /syn/menu\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["consume", "/syn/x", "--group", "g"], "a consumer group is a subscription here: -s NAME"),
        (["consume", "/syn/x", "--from-beginning"], "write --from earliest"),
        (["topics", "create", "/syn/x", "--retention", "7d"], "retention_s is a policy: --set retention_s=VALUE"),
        (
            ["produce", "/syn/x", "--retention-bytes", "1", "-m", "a"],
            "topics policies TOPIC --set retention_bytes=",
        ),
        (["consume", "--topic", "/syn/x"], "the topic is an argument"),
        (["consume", "/syn/x", "--bootstrap-server", "x:1"], "write --url URL"),
        (["topics", "lsit"], "did you mean 'danube topics list'?"),
    ],
)
def test_what_means_something_else_here_is_explained(talk, words, hint):
    done = talk(*words)
    assert (done.returncode, hint in done.stderr) == (2, True), done.stderr


def test_messages_stand_after_the_topic_and_exclude_the_option(talk):
    talk("produce", "/syn/words", "one", "two words")
    assert printed(talk("consume", "/syn/words", "-e")) == "one\ntwo words\n"
    assert talk("produce", "/syn/words", "one", "-m", "two").returncode == 2


def test_a_topic_is_created_with_policies(talk):
    made = talk("topics", "create", "/syn/kept", "--set", "retention_s=2d", "--set", "message-bytes-max=64KiB")
    assert made.returncode == 0, made.stderr
    own = json.loads(printed(talk("topics", "policies", "/syn/kept", "--json")))["own"]
    told = {name: value for name, value in own.items() if value is not None}
    assert told == {"retention_s": 172_800, "message_bytes_max": 65_536}
    again = talk("topics", "create", "/syn/kept", "--if-not-exists", "--set", "ttl_s=1h")
    assert (again.returncode, "keeps its policies" in again.stderr) == (0, True)
    assert talk("topics", "create", "/syn/never", "--set", "retention_s=-5").returncode == 2
    assert talk("topics", "describe", "/syn/never").returncode == 1


def test_a_topic_without_a_namespace_is_in_that_of_the_profile(talk, served, tmp_path):
    assert talk("produce", "plain", "a").returncode == 0
    assert printed(talk("consume", "/default/plain", "-e")) == "a\n"
    assert talk("profile", "add", "shop", "--url", served.url, "--namespace", "syn-shop").returncode == 0
    assert talk("--profile", "shop", "produce", "orders", "b").returncode == 0
    assert printed(talk("consume", "/syn-shop/orders", "-e")) == "b\n"
    assert printed(talk("consume", "--profile", "shop", "orders", "-e", "--json"))
    assert talk("profile", "use", "shop").returncode == 0
    environment = {**os.environ, "DANUBE_CONFIG_HOME": str(tmp_path)}
    environment.pop("DANUBE_URL", None)
    assert printed(danube("consume", "orders", "-e", environment=environment)) == "b\n"
    # --url names another broker, and the namespace of the profile is not meant
    assert printed(danube("consume", "plain", "-e", "--url", served.url, environment=environment)) == "a\n"


PLACE = {"topic": "t", "partition": 3, "tstype": "create", "broker": 1}
KCAT = [
    {**PLACE, "offset": 7, "ts": 1767225600000, "key": "k", "payload": "a"},
    {**PLACE, "offset": 8, "ts": -1, "key": None, "payload": None},
    {**PLACE, "offset": 9, "ts": 1767225600001, "headers": ["a", "1", "b", None], "key": "k2", "payload": {"id": 1}},
]


@pytest.mark.parametrize("option", ["--json", "--json-lines", "-J"])
def test_lines_of_kcat_are_published_as_what_they_hold(talk, option):
    topic = f"/syn/kcat{option}"
    done = talk("produce", topic, option, stdin="".join(f"{json.dumps(one)}\n" for one in KCAT))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in printed(talk("consume", topic, "-e", "--json")).splitlines()]
    assert [(one["key"], one["payload"], one["attributes"]) for one in rows] == [
        ("k", "a", {}),
        (None, "", {}),
        ("k2", '{"id": 1}', {"a": "1", "b": ""}),
    ]
    assert rows[0]["publish_time"] == "2026-01-01T00:00:00+00:00"
    assert rows[1]["publish_time"] > "2026-01-01T00:00:00+00:00"


def test_other_lines_stay_payloads_with_json(talk):
    done = talk("produce", "/syn/plain-json", "--json", stdin='{"payload": "a"}\n{"topic": 1}\n')
    assert json.loads(printed(done))["messages"] == 2
    assert printed(talk("consume", "/syn/plain-json", "-e")) == '{"payload": "a"}\n{"topic": 1}\n'


def test_wrong_headers_are_named_with_their_line(talk):
    done = talk("produce", "/syn/odd", "-J", stdin=json.dumps({**KCAT[0], "headers": ["a"]}))
    assert done.returncode == 1
    assert "line 1: its headers" in done.stderr


def test_help_is_as_wide_as_the_terminal_and_has_one_line_about_the_connection(talk, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    wide = printed(talk("consume", "--help"))
    assert 120 < max(map(len, wide.splitlines())) < 150
    assert "--tls-" not in wide
    assert wide.count("--url") == 1
    assert "--tls-ca-file" in printed(talk("--help"))
    assert "--url TEXT" in printed(talk("profile", "add", "--help"))


def on_terminal(*words: str, url: str) -> str:
    """Return what a command shows on a terminal of 120 columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "DANUBE_URL": url}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "pydanube.cli", *words], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the process
        while chunk := os.read(ours, 65_536):
            shown += chunk
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def test_a_person_sees_a_table_of_topics_and_json_with_line_breaks(talk, served):
    talk("topics", "create", "/syn/seen", "--partitions", "3", "--ack-level", "written")
    talk("produce", "/syn/seen", "hello")
    [row] = [line for line in on_terminal("topics", "list", url=served.url).splitlines() if "/syn/seen" in line]
    assert row.split()[:4] == ["/syn/seen", "3", "written", "1"]
    shown = on_terminal("consume", "/syn/seen", "-e", "--json", url=served.url)
    assert '\n  "payload": "hello",\n' in shown
    assert json.loads(shown)["topic"] == "/syn/seen"
