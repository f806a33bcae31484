"""`danube request` and `danube reply` against a real broker process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.process

SECONDS_MAX = 120
TIMEOUT = ("--timeout", str(SECONDS_MAX))


@contextmanager
def replying(start, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `danube reply`, which is ready in the block."""
    process = start("reply", *arguments)
    assert "answering requests" in process.stderr.readline()
    yield process
    assert process.wait(SECONDS_MAX) == 0


def test_a_text_answers_and_the_topic_is_made_for_it(danube, start, topic):
    with replying(start, topic, "-m", "hello", "--count", "1") as process:
        asked = danube("request", topic, "-m", "who is there?", *TIMEOUT)
        assert (asked.returncode, asked.stdout, asked.stderr) == (0, "hello\n", "")
        assert process.stdout.read() == "who is there?\n"
    assert json.loads(danube("topics", "describe", topic, "--json").stdout)["config"]["reliable"] is False


def test_a_program_answers_what_comes_from_stdin(danube, start, topic):
    with replying(start, topic, "--command", "tr a-z A-Z", "--count", "2"):
        assert danube("request", topic, "--raw", *TIMEOUT, stdin="two\nlines\n").stdout == "TWO\nLINES"
        shown = json.loads(danube("request", topic, "-m", "x", "--json", *TIMEOUT).stdout)
        assert shown == {"payload": "X", "payload_encoding": "utf-8", "attributes": {}, "error": None}


def test_a_program_that_fails_answers_with_its_last_words(danube, start, topic):
    with replying(start, topic, "--command", "cat /no/such/file", "--count", "2"):
        asked = danube("request", topic, "-m", "x", *TIMEOUT)
        assert (asked.returncode, asked.stdout) == (1, "")
        assert asked.stderr.startswith("the responder failed: cat: cat: /no/such/file: ")
        asked = danube("request", topic, "-m", "x", "--json", *TIMEOUT)
        assert asked.returncode == 1 and json.loads(asked.stdout)["error"]["kind"] == "cat"


def test_several_subscriptions_answer_one_request(danube, start, topic):
    with (
        replying(start, topic, "--echo", "--count", "1"),
        replying(start, topic, "-m", "me too", "-s", "others", "--count", "1"),
    ):
        asked = danube("request", topic, "-m", "all?", "--replies", "2", *TIMEOUT)
        assert (asked.returncode, sorted(asked.stdout.splitlines())) == (0, ["all?", "me too"])


def test_ctrl_c_is_the_usual_end_of_reply(start, topic):
    with replying(start, topic, "--echo") as process:
        process.send_signal(signal.SIGINT)


def test_a_request_that_nobody_answers_fails_in_one_line(danube, topic):
    asked = danube("request", topic, "-m", "x", "--timeout", "0.2")
    assert asked.returncode == 1
    assert f"topic {topic} does not exist" in asked.stderr
    danube("topics", "create", topic)
    asked = danube("request", topic, "-m", "x", "--timeout", "0.2")
    assert (asked.returncode, asked.stderr) == (1, f"danube: no reply from {topic} within 0.2 s\n")
    asked = danube("request", topic, "-m", "x", "--timeout", "0.2", "--replies", "3")
    assert (asked.returncode, asked.stderr) == (1, f"danube: no reply from {topic} within 0.2 s\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reply",), "say what to answer"),
        (("reply", "--echo", "-m", "x"), "say what to answer"),
        (("reply", "--command", "'"), "cannot be read"),
        (("reply", "--command", " "), "names no program"),
        (("request", "--json", "--raw", "-m", "x"), "exclude each other"),
    ],
)
def test_wrong_usage(danube, topic, arguments, said):
    done = danube(*arguments, topic)
    assert done.returncode == 2 and said in done.stderr
