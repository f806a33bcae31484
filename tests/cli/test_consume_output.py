"""How `danube consume` writes messages: exact bytes, delimiters, formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import danube_bytes

pytestmark = pytest.mark.process

EVERY_BYTE = bytes(range(256)) * 12
Binary = Callable[..., bytes]


@pytest.fixture
def written(served) -> Binary:
    """Run `danube consume` and return what it wrote, as bytes."""

    def run(*arguments: str) -> bytes:
        done = danube_bytes("consume", *arguments, url=served.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def binary_topic(danube, topic, tmp_path: Path) -> str:
    (tmp_path / "f").write_bytes(EVERY_BYTE)
    assert danube("produce", topic, "--file", str(tmp_path / "f"), "--whole", "--count", "2").returncode == 0
    return topic


def test_raw_writes_the_bytes_that_were_published_and_nothing_else(written: Binary, binary_topic: str):
    assert written(binary_topic, "--from", "earliest", "--count", "1", "--raw") == EVERY_BYTE
    assert written(binary_topic, "-e", "--raw") == EVERY_BYTE * 2


def test_a_delimiter_follows_every_message(written: Binary, binary_topic: str):
    assert written(binary_topic, "-e", "--raw", "-D", r"\0--\n") == (EVERY_BYTE + b"\0--\n") * 2


def test_text_has_a_delimiter_too(written: Binary, danube, topic):
    danube("produce", topic, "-m", "a", "-m", "b")
    assert written(topic, "-e", "-D", "; ") == b"a; b; "
    assert written(topic, "-e") == b"a\nb\n"


def test_a_format_tells_everything_about_a_message(written: Binary, danube, topic):
    danube("produce", topic, "-m", "one", "-k", "user", "-a", "region=eu")
    danube("produce", topic, "-m", "two")
    out = written(topic, "-e", "--format", r"%t %p %o %k(%K) %s(%S) %h\n")
    assert out == f"{topic} 0 0 user(4) one(3) region=eu\n{topic} 0 1 (-1) two(3) \n".encode()
    assert written(topic, "-e", "-f", "%R%s") == b"\0\0\0\3one\0\0\0\3two"
    assert int(written(topic, "-e", "--count", "1", "-f", "%T")) > 1_600_000_000_000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--format", "%x"], "'%x'"),
        (["--format", r"\q"], "no escape"),
        (["-D", ""], "empty delimiter"),
        (["--raw", "--json"], "exclude each other"),
        (["--format", "%s", "--raw"], "exclude each other"),
        (["--format", "%s", "-D", ","], "--delimiter"),
        (["--json", "-D", ","], "--delimiter"),
    ],
)
def test_output_that_contradicts_itself_is_wrong_usage(danube, topic, options: list[str], named: str):
    refused = danube("consume", topic, *options)
    assert (refused.returncode, named in refused.stderr) == (2, True), refused.stderr
