"""Where the broker is, for programs and commands that do not say: the variable DANUBE_URL, or this machine."""

from __future__ import annotations

import os
from typing import Final

URL_VARIABLE: Final = "DANUBE_URL"
DEFAULT_URL: Final = "danube://127.0.0.1:6655"


def broker_url() -> str:
    """Return the broker URL of the environment, or the default one. An empty variable counts as unset."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL
