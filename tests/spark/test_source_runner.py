"""The process in which Spark runs the reader of a stream ends without a word when Spark closes its socket."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import BinaryIO

import pytest
from pyspark.serializers import read_int, write_int, write_with_length
from pyspark.sql.streaming.python_streaming_source_runner import INITIAL_OFFSET_FUNC_ID
from pyspark.sql.types import BinaryType, StructType

from pydanube.spark.datasource import DanubeDataSource

SCHEMA = StructType().add("payload", BinaryType())
SECRET = "so"
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


def introduce(file: BinaryIO) -> None:
    """Send what Spark sends to a new runner."""
    assert file.read(read_int(file)) == SECRET.encode()
    write_with_length(b"ok", file)
    write_with_length(b"%d.%d" % sys.version_info[:2], file)
    write_with_length(b"", file)  # the directory of its files
    write_int(0, file)  # archives for the path
    source = DanubeDataSource({"topic": "/default/words", "servers": "127.0.0.1:1"})
    write_with_length(pickle.dumps(source), file)
    write_with_length(SCHEMA.json().encode(), file)
    write_int(1_000, file)
    file.flush()


def between_two_calls(_file: BinaryIO) -> None:
    return


def while_it_answers(file: BinaryIO) -> None:
    for _ in range(20_000):
        write_int(INITIAL_OFFSET_FUNC_ID, file)
    file.flush()


@pytest.mark.parametrize("moment", [between_two_calls, while_it_answers], ids=lambda one: one.__name__)
def test_a_closed_socket_ends_the_runner_without_a_traceback(moment: Callable[[BinaryIO], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        runner = subprocess.Popen([sys.executable, "-m", RUNNER], env={**os.environ, **place}, stderr=subprocess.PIPE)
        ours, _ = server.accept()
    with ours, ours.makefile("rwb") as file:
        introduce(file)
        assert read_int(file) == runner.pid
        assert read_int(file) == 0, "it is ready"
        moment(file)
        ours.shutdown(socket.SHUT_RDWR)
    _, errors = runner.communicate(timeout=120)
    assert errors.decode() == ""
