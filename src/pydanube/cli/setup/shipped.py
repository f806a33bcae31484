"""Files of the repository that are in the wheel too, such as `deploy/grafana/danube.json` (see pyproject.toml)."""

from __future__ import annotations

from pathlib import Path

import pydanube


def shipped(place: str) -> Path:
    """Return where a file or directory of the repository is: in the installed package, or in the checkout."""
    package = Path(pydanube.__file__).parent
    installed = package / "shipped" / place
    return installed if installed.exists() else package.parents[1] / place
