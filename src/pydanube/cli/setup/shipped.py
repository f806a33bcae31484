"""Files of the repository that are in the wheel too, such as `deploy/grafana/danube.json` (see pyproject.toml)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[2]


def shipped(place: str) -> Path:
    """Return where a file or directory of the repository is: in the installed package, or in the checkout."""
    installed = _PACKAGE / "shipped" / place
    return installed if installed.exists() else _PACKAGE.parents[1] / place
