"""`make cluster`: three brokers on this machine, and nothing of them left after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from cluster_world import danube
from etcd_cluster import free_shift, missing_etcd

import pydanube

pytestmark = pytest.mark.process
RUN = Path(__file__).parents[2] / "deploy" / "cluster" / "run.py"


def read_to(lines: IO[str], start: str) -> str:
    """Read to the line that begins with `start`; return all that was read."""
    said = ""
    for line in lines:
        said += line
        if line.startswith(start):
            return said
    raise AssertionError(f"no line begins with {start!r}:\n{said}")


@pytest.mark.etcd
@pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")
def test_three_brokers_serve_until_ctrl_c_and_leave_no_process(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--directory", str(tmp_path / "cluster"), "--shift", str(free_shift())]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C stops everything"):
                break
        found = re.search(r"native  (\S+) (\S+) (\S+)\n", said)
        assert found, said
        with pydanube.connect_blocking(f"danube://{found[1]}") as client:
            client.create_topic("/default/tried", partitions=6)
            with client.producer("/default/tried") as producer:
                receipts = producer.send_many([b"one"] * 60, keys=[f"key-{number}" for number in range(60)])
                assert {one.partition for one in receipts} == set(range(6))
        listed = danube("brokers", "list", "--url", f"danube://{found[3]}")
        assert listed.returncode == 0, listed.stderr
        assert all(f"broker{number}" in listed.stdout for number in (1, 2, 3)), listed.stdout
        killed = re.search(r"broker2 is (\d+)", said)
        assert killed, said
        os.kill(int(killed[1]), signal.SIGKILL)
        said += read_to(process.stdout, "broker2 was ended by SIGKILL")
        process.stdin.write("\n")
        process.stdin.flush()
        said += read_to(process.stdout, " broker2 | danube ready")
        assert "raft" not in said, "etcd says only what is wrong"
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said + rest
    for pid in re.findall(r"broker\d is (\d+)", said):
        assert not Path(f"/proc/{pid}").exists()


def test_without_etcd_it_says_what_to_install(tmp_path: Path) -> None:
    nothing_found = "import runpy, shutil; shutil.which = lambda *_, **__: None; "
    done = subprocess.run(
        [sys.executable, "-c", f"{nothing_found} runpy.run_path({str(RUN)!r}, run_name='__main__')"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "apt install etcd-server" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was made"
