"""What the processes of a query import. Each query starts new ones, so every import costs time at each start."""

from __future__ import annotations

import subprocess
import sys

import pytest


def imported_with(module: str) -> set[str]:
    """Return the modules that a new process has after importing one."""
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["pydanube.spark.datasource", "pydanube.spark.reading.stream_reader"])
def test_planning_a_stream_imports_neither_the_client_nor_arrows_functions(module: str) -> None:
    found = imported_with(module)
    assert module in found
    assert not found & {"pydanube.client.client", "pydanube.client.blocking.client", "pyarrow.compute"}


def test_a_task_that_filters_nothing_does_not_import_arrows_functions() -> None:
    found = imported_with("pydanube.spark.reading.fetching")
    assert "pydanube.client.blocking.client" in found
    assert "pyarrow.compute" not in found


def test_the_client_package_gives_every_name_it_exports_and_no_other() -> None:
    from pydanube import client

    assert sorted(dir(client)) == sorted(client.__all__)
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        client.Cleint  # noqa: B018
