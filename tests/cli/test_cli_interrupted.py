"""Ctrl-C: commands that run until they are stopped end in order; a second Ctrl-C ends them at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from pydanube import connect_blocking

pytestmark = pytest.mark.process


def interrupt_twice(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send two signals in a row, and return the output."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # two of the same kind might be delivered as one
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=120)


def test_a_count_that_was_not_reached_is_no_failure_where_ctrl_c_ended_it(danube, start, topic):
    danube("produce", topic, "-m", "hello")
    process = start("consume", topic, "--from", "earliest", "--count", "5", "--timeout", "60")
    assert process.stdout.readline() == "hello\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


def test_a_second_signal_interrupts_consume(danube, start, topic):
    danube("produce", topic, "-m", "hello")
    process = start("consume", topic, "-s", "work", "--from", "earliest")
    assert process.stdout.readline() == "hello\n"
    assert interrupt_twice(process) == ("", "danube: interrupted\n")
    assert process.returncode == 130


@pytest.mark.exhaustive
def test_a_second_signal_interrupts_top(start):
    process = start("top", "--json", "--interval", "1h")
    assert json.loads(process.stdout.readline())["topics"] is not None
    assert interrupt_twice(process) == ("", "danube: interrupted\n")
    assert process.returncode == 130


@pytest.mark.exhaustive
def test_a_second_signal_interrupts_a_redrive_which_says_how_far_it_got(danube, served, start, topic):
    dead = f"{topic}-dlq"
    danube("topics", "create", topic)
    danube("produce", dead, "-a", f"x-original-topic={topic}", stdin="x\n" * 20)
    process = start("dlq", "redrive", dead, "--all", "--to", topic, "--yes", "--rate", "2", "--json")
    with connect_blocking(served.url) as client:
        deadline = time.monotonic() + 120
        while len(client.dead_letters(dead).first(20)) > 18:  # with the second one gone, the first was told of
            assert time.monotonic() < deadline
    output, errors = interrupt_twice(process)
    assert process.returncode == 130, errors
    told = json.loads(output)
    assert told["interrupted"]
    assert errors == f"interrupted: {told['redriven']} of 20 letters sent back; the same command does the rest\n"
