"""Object stores of tests that brokers in processes of their own find by an entry point."""

from __future__ import annotations

import os
from pathlib import Path


def installed(directory: Path, scheme: str, module: str) -> str:
    """Install a module of this folder as the store of the scheme; return the PYTHONPATH of processes that know it. The
    module has a function `open_` with the name of the scheme."""
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pydanube.object_stores]\n{scheme} = {module}:open_{scheme}\n")
    paths = [str(directory), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)
