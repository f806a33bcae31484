"""Azure, against Azurite. Runs with `make test-stores`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import traceback
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from object_servers import AZURITE_ACCOUNT, AZURITE_KEY, Server, azure_server, missing_azurite
from objects_conformance import Conformance, Place

from pydanube.model.errors import Denied, Unauthenticated
from pydanube.runtime.objects import open_store
from pydanube.runtime.randomness import identity

pytestmark = pytest.mark.stores

CONTAINER = "danube"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert not missing_azurite(), missing_azurite()
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        make_container(server.port)
        yield server


def make_container(port: int) -> None:
    """Which a store does not do; signed as Azure wants it."""
    path = f"/{AZURITE_ACCOUNT}/{CONTAINER}"
    headers = {
        "x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": "2021-12-02",
        "Content-Length": "0",
    }
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{headers['x-ms-date']}\nx-ms-version:{headers['x-ms-version']}\n"
    signed += f"/{AZURITE_ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}{path}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


@pytest.fixture
def place(server: Server) -> Place:
    settings = {
        "account_name": AZURITE_ACCOUNT,
        "account_key": AZURITE_KEY,
        "endpoint": f"http://127.0.0.1:{server.port}/{AZURITE_ACCOUNT}",
    }
    return Place(f"az://{CONTAINER}/{identity()}", settings)


class TestAzure(Conformance):
    pass


async def test_no_credential_is_in_what_is_said_of_a_refusal(place: Place) -> None:
    wrong = base64.b64encode(b"a key that is wrong").decode()
    sas = "sv=2021-12-02&ss=b&srt=sco&sp=rwdl&se=2031-01-01T00%3A00%3A00Z&sig=aWFtd3JvbmdhbmRzZWNyZXQ%3D"
    for credential in ({"account_key": wrong}, {"sas_key": sas}):
        settings = {name: value for name, value in place.settings.items() if name != "account_key"} | credential
        async with await open_store(place.url, settings) as store:
            for work in (store.put("k", b"x"), store.get("k", 0, 5), store.head("k"), store.delete(["k"])):
                with pytest.raises((Denied, Unauthenticated)) as refused:
                    await work
                said = "".join(traceback.format_exception(refused.value)) + store.url + repr(store)
                assert wrong not in said and "aWFtd3Jvbmdhbm" not in said
