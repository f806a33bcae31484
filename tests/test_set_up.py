"""Set-up tries three times what cannot be downloaded, then says what could not be had and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.exhaustive
def test_set_up_without_a_network_names_what_it_could_not_have(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    options = [f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", "PAUSE_SECONDS=0"]
    done = subprocess.run(
        ["make", "setup", *options], cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True, timeout=600
    )
    assert done.returncode, done.stdout
    assert done.stderr.count("could not be installed; once more in 0 s") == 2
    what, remedy = [line for line in done.stderr.splitlines() if not line.startswith("make")][-2:]
    assert what.startswith("What requirements-dev.lock lists could not be installed: ERROR")
    assert "HTTPS_PROXY" in remedy and "run it again" in remedy
    assert not (tmp_path / "venv" / ".installed").exists()
