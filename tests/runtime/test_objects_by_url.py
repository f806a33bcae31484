"""The conformance suite against any store, by URL.

    DANUBE_TEST_STORE_URL=gs://bucket/tests python -m pytest -m stores tests/runtime/test_objects_by_url.py

Settings come as a JSON table of text in DANUBE_TEST_STORE_OPTIONS. Everything below the URL's prefix is deleted. This
is how Google Cloud Storage is tested, for which no emulator does what the client library asks of it.
"""

from __future__ import annotations

import json
import os

import pytest
from objects_conformance import Conformance, Place, keys_of

from pydanube.runtime.objects import open_store

URL = os.environ.get("DANUBE_TEST_STORE_URL", "")
OPTIONS = json.loads(os.environ.get("DANUBE_TEST_STORE_OPTIONS", "{}"))


@pytest.mark.stores
@pytest.mark.skipif(not URL, reason="DANUBE_TEST_STORE_URL is not set")
class TestByUrl(Conformance):
    @pytest.fixture
    async def place(self) -> Place:
        async with await open_store(URL, OPTIONS) as store:
            await store.delete(await keys_of(store))
        return Place(URL, OPTIONS)
