"""Assertions of the shared suites explain themselves as those of tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("objects_conformance", "object_servers")
