"""What `danube produce` makes of its input: keys, JSON lines, line ends; and that a failure leaves no topic behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from commands import EndedBytes, danube_bytes

from pydanube.model.limits import MESSAGE_BYTES_MAX

pytestmark = pytest.mark.process


@pytest.fixture
def pipe(served) -> Callable[..., EndedBytes]:
    """Run one command with bytes in and out."""

    def run(*arguments: str, stdin: bytes = b"", url: str | None = None) -> EndedBytes:
        return danube_bytes(*arguments, stdin=stdin, url=url or served.url)

    return run


def produced(pipe, topic: str, stdin: bytes, *options: str) -> None:
    done = pipe("produce", topic, *options, stdin=stdin)
    assert done.returncode == 0, done.stderr


def consumed(pipe, topic: str, *options: str) -> bytes:
    done = pipe("consume", topic, "-e", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_line_is_published_byte_for_byte_with_its_cr(pipe, topic):
    produced(pipe, topic, b"dos\r\n\xff\0\n\r\n")
    assert consumed(pipe, topic, "--raw", "-D", "|") == b"dos\r|\xff\0|\r|"


def test_the_cr_of_a_line_end_is_removed_when_asked(pipe, topic):
    produced(pipe, topic, b"dos\r\nunix\n", "--crlf")
    assert consumed(pipe, topic, "--raw", "-D", "|") == b"dos|unix|"


def test_binary_messages_pass_through_a_pipe_with_a_delimiter(pipe, topic):
    produced(pipe, topic, b"a\nb\0\xff\r\n\0", "-D", r"\0")
    assert consumed(pipe, topic, "--raw", "-D", r"\0") == b"a\nb\0\xff\r\n\0"


def test_the_key_is_before_the_delimiter(pipe, topic):
    produced(pipe, topic, "ü:one:more\nno key\n:empty\nk:\n".encode(), "-K", ":")
    out = consumed(pipe, topic, "-f", r"%k(%K)=%s\n")
    assert out == "ü(2)=one:more\n(-1)=no key\n(-1)=empty\nk(1)=\n".encode()


def test_the_key_delimiter_may_be_an_escape_of_several_bytes(pipe, topic):
    produced(pipe, topic, b"a\t\tb\tc\n", "-K", r"\t\t")
    assert consumed(pipe, topic, "-f", r"%k=%s\n") == b"a=b\tc\n"


def test_keys_of_lines_choose_the_partition(pipe, topic):
    rows = b"".join(b"k%d:%d\n" % (number % 7, number) for number in range(70))
    produced(pipe, topic, rows, "-K", ":", "--partitions", "4")
    places: dict[str, set[str]] = {}
    for line in consumed(pipe, topic, "-f", r"%k %p\n").decode().splitlines():
        key, partition = line.split()
        places.setdefault(key, set()).add(partition)
    assert len(places) == 7
    assert all(len(partitions) == 1 for partitions in places.values())


COPIED = ("key", "payload", "payload_encoding", "attributes", "publish_time", "deliver_at")


def test_json_lines_are_what_consume_prints(pipe, topic, tmp_path: Path):
    (tmp_path / "f").write_bytes(bytes(range(256)))
    produced(pipe, topic, b"", "--file", str(tmp_path / "f"), "--whole", "-k", "ü", "-a", "a=1", "-a", "b=")
    produced(pipe, topic, b"plain\r\n\n{}\n")
    produced(pipe, topic, b"", "-m", "later", "--deliver-at", "2000-01-01T00:00:00.123456Z")
    told = consumed(pipe, topic, "--json")
    produced(pipe, f"{topic}-copy", told, "--json-lines")
    copied = consumed(pipe, f"{topic}-copy", "--json")
    rows = [[{name: json.loads(line)[name] for name in COPIED} for line in one.splitlines()] for one in (told, copied)]
    assert len(rows[0]) == 5
    assert rows[1] == rows[0]
    assert consumed(pipe, f"{topic}-copy", "--raw") == bytes(range(256)) + b"plain\r" + b"{}" + b"later"


def test_json_lines_need_a_payload_only(pipe, topic):
    encoded = base64.b64encode(b"\xff").decode()
    lines = f'{{"payload": "a"}}\n\n{{"payload": "{encoded}", "payload_encoding": "base64", "key": "k"}}\n'
    produced(pipe, topic, lines.encode(), "--json-lines", "-a", "from=test")
    assert consumed(pipe, topic, "-f", "%k %s %h;") == b" a from=test;k \xff from=test;"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"hello", "line 2 is not a JSON object"),
        (b'{"key": "k"}', "payload"),
        (b'{"payload": {"a": 1}}', "payload"),
        (b'{"payload": "a", "atributes": {}}', "atributes"),
        (b'{"payload": "?", "payload_encoding": "base64"}', "line 2: its payload is not base64"),
        ('{"payload": "é", "payload_encoding": "base64"}'.encode(), "line 2: its payload is not base64"),
        (b'{"payload": "a", "payload_encoding": "hex"}', "hex"),
        (b'{"payload": "a", "publish_time": "yesterday"}', "publish_time"),
        (b"\xff", "line 2"),
    ],
)
def test_a_line_that_is_no_message_is_named_and_leaves_no_topic(pipe, topic, line: bytes, named: str):
    refused = pipe("produce", topic, "--json-lines", stdin=b'{"payload": "good"}\n' + line + b"\n")
    assert refused.returncode == 1
    assert named in refused.stderr.decode()
    assert "line 2" in refused.stderr.decode()
    assert refused.stderr.count(b"\n") == 1
    assert topic.encode() not in pipe("topics", "list").stdout


@pytest.mark.parametrize(
    ("option", "good", "bad"), [("-K:", b"k:v", b"\xff:v"), ("--json-lines", b'{"payload":""}', b"{")]
)
def test_a_line_is_named_by_its_number_in_a_long_input(pipe, topic, option: str, good: bytes, bad: bytes):
    refused = pipe("produce", topic, option, stdin=b"\n".join([good] * 4_321 + [bad] + [good] * 10))
    assert refused.returncode == 1
    assert "line 4322" in refused.stderr.decode()


@pytest.mark.parametrize(
    "options",
    [
        ["-k", "k" * 70_000, "-m", "x"],
        ["-m", "x", "--partition", "3"],
        ["-m", "x", "--partition", "3", "--partitions", "3"],
        ["-m", "x", "--deliver-after", "1m", "--non-reliable"],
        ["-m", "x", "--deliver-at", "2999-01-01T00:00:00Z"],
        ["--file", "LARGE", "--whole"],
        ["--file", "LARGE"],
        ["--file", "KEYED", "-K", ":"],
        ["--file", "DELAYED", "--json-lines"],
        ["--file", "DELAYED", "--json-lines", "--non-reliable"],
    ],
)
def test_a_message_that_cannot_be_published_creates_no_topic(pipe, topic, tmp_path: Path, options: list[str]):
    (tmp_path / "LARGE").write_bytes(b"x" * (MESSAGE_BYTES_MAX + 1))
    (tmp_path / "KEYED").write_bytes(b"\xff:x\n")
    year = 2100 if "--non-reliable" not in options else datetime.now(UTC).year + 1
    (tmp_path / "DELAYED").write_text(f'{{"payload": "x", "deliver_at": "{year}-01-01T00:00:00Z"}}')
    arguments = [str(tmp_path / one) if one in ("LARGE", "KEYED", "DELAYED") else one for one in options]
    refused = pipe("produce", topic, *arguments)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.startswith(b"danube: ")
    assert refused.stderr.count(b"\n") == 1, refused.stderr
    assert topic.encode() not in pipe("topics", "list").stdout


def test_a_message_too_large_for_this_broker_creates_no_topic(pipe, serve, topic, tmp_path: Path):
    (tmp_path / "danube.toml").write_text("[limits]\nmessage_bytes_max = 1000\n")
    url = serve(tmp_path / "data", "--config", str(tmp_path / "danube.toml")).url
    refused = pipe("produce", topic, "-m", "x" * 1001, url=url)
    assert refused.returncode == 1
    assert b"at most 1000" in refused.stderr
    assert pipe("topics", "list", "--json", url=url).stdout == b"[]\n"
    assert pipe("produce", topic, "-m", "x" * 1000, url=url).returncode == 0


def test_an_empty_input_creates_no_topic_unless_asked(pipe, topic):
    produced(pipe, topic, b"")
    assert topic.encode() not in pipe("topics", "list").stdout
    produced(pipe, topic, b"", "--partitions", "2")
    assert topic.encode() in pipe("topics", "list").stdout


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["-K", ":", "--json-lines"], "exclude each other"),
        (["-K", ":", "-k", "a"], "exclude each other"),
        (["--json-lines", "-k", "a"], "exclude each other"),
        (["--json-lines", "--deliver-after", "1s"], "exclude each other"),
        (["-K", ":", "-m", "a"], "lines of input"),
        (["--crlf", "-m", "a"], "lines of input"),
        (["-K", ""], "empty delimiter"),
        (["-D", r"\y"], "no escape"),
    ],
)
def test_options_of_lines_that_contradict_others_are_wrong_usage(pipe, topic, options: list[str], named: str):
    refused = pipe("produce", topic, *options)
    assert (refused.returncode, named in refused.stderr.decode()) == (2, True), refused.stderr
