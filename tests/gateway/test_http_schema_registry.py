"""The Confluent Schema Registry API, request by request: paths, bodies, parameters and error codes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from http_peer import Peer

from pydanube import connect_blocking, testing
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.http.schema_registry import MEDIA_TYPE
from pydanube.model.errors import Denied
from pydanube.model.limits import SCHEMA_BYTES_MAX

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WITH_NOTE = {
    "type": "record",
    "name": "Order",
    "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}],
}
OTHER_ID = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


class Registry:
    """A client that shows status and body as they are."""

    def __init__(self, url: str, broker_url: str) -> None:
        self.url = url
        self.broker_url = broker_url

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(f"{self.url}/schema-registry{path}", data, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                assert answer.headers["content-type"] == MEDIA_TYPE
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            refused = error
        assert refused.headers["content-type"] == MEDIA_TYPE
        failure = json.loads(refused.read())
        assert set(failure) == {"error_code", "message"} and failure["message"]
        return refused.code, failure["error_code"]

    def get(self, path: str) -> Any:
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        status, body = self.call("POST", f"/subjects/{quote(subject, safe='')}/versions", avro(schema, **more))
        assert status == 200, body
        return body["id"]


def avro(schema: Any, **more: Any) -> dict[str, Any]:
    return {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with testing._server_thread(None, {}) as server:
        yield Registry(server.http_url, server.url)


@pytest.fixture
def registry(served: Registry) -> Iterator[Registry]:
    """One broker for all tests; each leaves no subject behind."""
    yield served
    for path in ("/config", "/mode"):
        served.call("DELETE", path)
    names = served.get("/subjects?deleted=true")
    for name in names:
        served.call("PUT", f"/mode/{quote(name, safe='')}", {"mode": "READWRITE"})
    for _ in names:  # those that refer to others first, whichever they are
        for name in served.get("/subjects?deleted=true"):
            served.call("DELETE", f"/subjects/{quote(name, safe='')}")
            served.call("DELETE", f"/subjects/{quote(name, safe='')}?permanent=true")
    assert served.get("/subjects?deleted=true") == []


# -- registering and reading -------------------------------------------------------------------------------------------


def test_a_schema_is_registered_and_found_by_everything_it_has(registry: Registry) -> None:
    first = registry.register("orders-value", ORDER)
    second = registry.register("orders-value", WITH_NOTE)
    assert second > first
    assert registry.get("/subjects") == ["orders-value"]
    assert registry.get("/subjects/orders-value/versions") == [1, 2]
    whole = {"subject": "orders-value", "version": 2, "id": second, "schema": json.dumps(WITH_NOTE)}
    for version in ("2", "latest", "-1"):
        assert registry.get(f"/subjects/orders-value/versions/{version}") == whole
    assert registry.get("/subjects/orders-value/versions/1/schema") == ORDER
    assert registry.get(f"/schemas/ids/{first}") == {"schema": json.dumps(ORDER)}
    assert registry.get(f"/schemas/ids/{first}/schema") == ORDER
    assert registry.get(f"/schemas/ids/{first}/subjects") == ["orders-value"]
    assert registry.get(f"/schemas/ids/{first}/versions") == [{"subject": "orders-value", "version": 1}]
    assert registry.call("POST", "/subjects/orders-value", avro(WITH_NOTE)) == (200, whole)


def test_the_same_definition_has_one_id_in_all_subjects_however_it_is_written(registry: Registry) -> None:
    first = registry.register("a", ORDER)
    assert registry.register("a", json.dumps(ORDER, indent=4)) == first
    assert registry.register("b", json.dumps(ORDER, indent=2)) == first
    assert registry.get("/subjects/a/versions") == [1]
    assert registry.get(f"/schemas/ids/{first}/subjects") == ["a", "b"]
    assert registry.get(f"/schemas/ids/{first}/subjects?subject=b") == ["b"]


def test_a_version_that_is_asked_for_is_the_one_that_the_definition_gets(registry: Registry) -> None:
    path = "/subjects/a/versions"
    assert registry.call("POST", path, avro(ORDER, version=2)) == (422, 42201)
    assert registry.call("GET", path) == (404, 40401)
    first = registry.register("a", ORDER, version=1)
    assert registry.register("a", ORDER, version=1) == first
    assert registry.call("POST", path, avro(ORDER, version=2)) == (422, 42201)
    for version in (1, 3):
        assert registry.call("POST", path, avro(WITH_NOTE, version=version)) == (422, 42201)
    registry.register("a", WITH_NOTE, version=2)
    assert registry.register("a", ORDER, version=-1) == first  # as some clients say that they ask for none
    registry.call("DELETE", f"{path}/2")
    assert registry.call("POST", path, avro(WITH_NOTE, version=2)) == (422, 42201)
    registry.register("a", WITH_NOTE, version=3)
    assert registry.get(path) == [1, 3]


def test_a_subject_may_have_slashes(registry: Registry) -> None:
    registry.register("/default/orders/versions/1", ORDER)
    name = quote("/default/orders/versions/1", safe="")
    assert registry.get(f"/subjects/{name}/versions") == [1]
    assert registry.get(f"/subjects/{name}/versions/1")["subject"] == "/default/orders/versions/1"
    assert registry.call("POST", f"/subjects/{name}", avro(ORDER))[0] == 200
    assert registry.call("PUT", f"/config/{name}", {"compatibility": "NONE"})[0] == 200


def test_every_type_is_registered_and_only_avro_is_left_out_of_the_answer(registry: Registry) -> None:
    assert sorted(registry.get("/schemas/types")) == ["AVRO", "JSON", "PROTOBUF"]
    texts = {
        "JSON": '{"type": "object"}',
        "PROTOBUF": 'syntax = "proto3"; message A { int32 a = 1; }',
        "AVRO": '"long"',
    }
    for kind, text in texts.items():
        number = registry.register(kind, text, schemaType=kind)
        found = registry.get(f"/schemas/ids/{number}")
        assert found.get("schemaType", "AVRO") == kind and found["schema"] == text
        assert ("schemaType" in found) == (kind != "AVRO")


def test_references_are_resolved_kept_and_known_to_what_they_refer_to(registry: Registry) -> None:
    registry.register("address", {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]})
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "Address"}]}
    for version in (1, -1):
        references = [{"name": "Address", "subject": "address", "version": version}]
        number = registry.register(f"person{version}", person, references=references)
        found = registry.get(f"/subjects/person{version}/versions/1")
        assert found["references"] == [{"name": "Address", "subject": "address", "version": 1}]
    assert registry.get("/subjects/address/versions/1/referencedby") == [number]
    assert registry.call("DELETE", "/subjects/address") == (422, 42206)
    assert registry.call("DELETE", "/subjects/address/versions/1") == (422, 42206)
    references = [{"name": "Address", "subject": "nothing", "version": 1}]
    for version in (1, -1):
        references[0]["version"] = version
        assert registry.call("POST", "/subjects/x/versions", avro(person, references=references)) == (422, 42201)


def test_lists_have_pages_prefixes_and_deleted_ones(registry: Registry) -> None:
    for name in ("b1", "a2", "a1"):
        registry.register(name, ORDER)
    registry.call("DELETE", "/subjects/a2")
    assert registry.get("/subjects") == ["a1", "b1"]
    assert registry.get("/subjects?deleted=true") == ["a1", "a2", "b1"]
    assert registry.get("/subjects?deletedOnly=true") == ["a2"]
    assert registry.get("/subjects?deleted_only=True&deleted=False") == ["a2"]
    assert registry.get("/subjects?subjectPrefix=a") == ["a1"]
    assert registry.get("/subjects?subjectPrefix=:*:") == ["a1", "b1"]
    assert registry.get("/subjects?deleted=true&offset=1&limit=1") == ["a2"]
    assert registry.get("/subjects?offset=1&limit=-1") == ["b1"]
    assert registry.call("GET", "/subjects?limit=many") == (400, 40001)
    assert registry.call("GET", "/subjects?deleted=perhaps") == (400, 40001)


def test_the_registry_says_what_it_is(registry: Registry) -> None:
    assert registry.get("/") == {}
    assert registry.get("/contexts") == ["."]
    assert registry.get("/v1/metadata/version")["version"].startswith("pydanube ")


# -- what is not there -------------------------------------------------------------------------------------------------


def test_what_is_not_there_has_confluents_codes(registry: Registry) -> None:
    registry.register("a", ORDER)
    for method, path, body, code in [
        ("GET", "/subjects/x/versions", None, 40401),
        ("GET", "/subjects/x/versions/1", None, 40401),
        ("GET", "/subjects/x/versions/latest", None, 40401),
        ("GET", "/subjects/a/versions/2", None, 40402),
        ("GET", "/subjects/a/versions/2/schema", None, 40402),
        ("GET", "/subjects/a/versions/2/referencedby", None, 40402),
        ("GET", "/subjects/x/versions/2/referencedby", None, 40401),
        ("GET", "/schemas/ids/99999", None, 40403),
        ("GET", "/schemas/ids/99999999999999999999", None, 40403),
        ("GET", "/schemas/ids/99999/schema", None, 40403),
        ("GET", "/schemas/ids/99999/subjects", None, 40403),
        ("GET", "/schemas/ids/99999/versions", None, 40403),
        ("POST", "/subjects/x", avro(ORDER), 40401),
        ("POST", "/subjects/a", avro(WITH_NOTE), 40403),
        ("DELETE", "/subjects/x", None, 40401),
        ("DELETE", "/subjects/x?permanent=true", None, 40401),
        ("DELETE", "/subjects/x/versions/1", None, 40401),
        ("DELETE", "/subjects/a/versions/2", None, 40402),
        ("GET", "/config/a", None, 40408),
        ("DELETE", "/config/a", None, 40401),
        ("GET", "/mode/a", None, 40409),
        ("DELETE", "/mode/a", None, 40401),
        ("POST", "/compatibility/subjects/a/versions/2", avro(ORDER), 40402),
        ("POST", "/compatibility/subjects/x/versions/1", avro(ORDER), 40401),
        ("GET", "/nothing", None, 404),
        ("GET", "/schemas/ids/one", None, 404),
    ]:
        assert registry.call(method, path, body) == (404, code), (method, path)
    assert registry.call("PATCH", "/subjects") == (405, 405)


def test_what_is_wrong_has_confluents_codes(registry: Registry) -> None:
    registry.register("a", ORDER)
    for method, path, body, code in [
        ("POST", "/subjects/a/versions", avro("{no JSON"), 42201),
        ("POST", "/subjects/a/versions", avro({"type": "nothing"}), 42201),
        ("POST", "/subjects/a/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/a/versions", {}, 42201),
        ("POST", "/subjects/a/versions", avro(ORDER, schemaType="XML"), 42201),
        ("POST", "/subjects/a/versions", avro("x" * (SCHEMA_BYTES_MAX + 1)), 42201),
        ("POST", "/subjects/a", avro({"type": "nothing"}), 42201),
        ("POST", "/compatibility/subjects/a/versions/1", avro({"type": "nothing"}), 42201),
        ("GET", "/subjects/a/versions/0", None, 42202),
        ("GET", "/subjects/a/versions/-2", None, 42202),
        ("GET", "/subjects/a/versions/x", None, 42202),
        ("GET", "/subjects/a/versions/99999999999", None, 42202),
        ("POST", "/compatibility/subjects/a/versions/x", avro(ORDER), 42202),
        ("PUT", "/config", {"compatibility": "SOMETIMES"}, 42203),
        ("PUT", "/config/a", {}, 42203),
        ("PUT", "/mode", {"mode": "SOMETIMES"}, 42204),
        ("PUT", "/mode/a", {"mode": "IMPORT"}, 42204),
        ("GET", f"/subjects/{quote('no name')}/versions", None, 42208),
        ("POST", "/subjects/a/versions", avro(ORDER, id=7), 42205),
        ("POST", "/subjects/a/versions", avro(ORDER, metadata={"properties": {}}), 42205),
        ("POST", "/subjects/a/versions", avro(ORDER, ruleSet={"domainRules": []}), 42205),
        ("PUT", "/config", {"compatibility": "NONE", "compatibilityGroup": "x"}, 42205),
    ]:
        assert registry.call(method, path, body) == (422, code), (method, path, body)
    for body in (b"", b"{", b"[]", b'{"schema": 1}', b"\xff", b'{"a":' * 100_000, b'{"references": {}}'):
        assert registry.call("POST", "/subjects/a/versions", body) == (400, 40001), body[:20]
    assert registry.get("/subjects/a/versions") == [1]


def test_an_id_of_any_length_is_only_not_found(registry: Registry) -> None:
    for digits in (10, 20, 21, 5000):
        for path in ("", "/schema", "/subjects", "/versions"):
            assert registry.call("GET", f"/schemas/ids/{'9' * digits}{path}") == (404, 40403)
    assert registry.call("GET", "/schemas/ids/-1") == registry.call("GET", "/schemas/ids/one") == (404, 404)


def test_the_default_context_may_be_named_and_others_are_refused(registry: Registry) -> None:
    registry.register(":.:contexts", ORDER)
    assert registry.get("/subjects/contexts/versions") == registry.get("/subjects/:.:contexts/versions") == [1]
    assert registry.call("POST", "/subjects/:.other:contexts/versions", avro(ORDER)) == (422, 42205)
    assert registry.call("GET", "/config/:.other:") == (422, 42205)


def test_null_fields_are_as_if_they_were_not_there(registry: Registry) -> None:
    body = avro(ORDER, schemaType=None, references=None, metadata=None, ruleSet=None, id=None, version=None, unknown=1)
    assert registry.call("POST", "/subjects/a/versions", body)[0] == 200


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_versions_are_deleted_twice(registry: Registry) -> None:
    number = registry.register("a", ORDER)
    registry.register("a", WITH_NOTE)
    assert registry.call("DELETE", "/subjects/a/versions/1?permanent=true") == (404, 40407)
    assert registry.call("DELETE", "/subjects/a/versions/1") == (200, 1)
    assert registry.call("DELETE", "/subjects/a/versions/1") == (404, 40406)
    assert registry.get("/subjects/a/versions") == [2]
    assert registry.get("/subjects/a/versions?deleted=true") == [1, 2]
    assert registry.get("/subjects/a/versions?deletedOnly=true") == [1]
    assert registry.call("GET", "/subjects/a/versions/1") == (404, 40402)
    assert registry.get("/subjects/a/versions/1?deleted=true")["id"] == number
    assert registry.get(f"/schemas/ids/{number}")["schema"] == json.dumps(ORDER)
    assert registry.get(f"/schemas/ids/{number}/subjects") == []
    assert registry.get(f"/schemas/ids/{number}/subjects?deleted=true") == ["a"]
    assert registry.call("POST", "/subjects/a", avro(ORDER)) == (404, 40403)
    assert registry.call("POST", "/subjects/a?lookupDeletedSubject=true", avro(ORDER))[1]["version"] == 1
    assert registry.call("POST", "/subjects/a?deleted=true", avro(ORDER))[1]["version"] == 1
    assert registry.call("DELETE", "/subjects/a/versions/1?permanent=true") == (200, 1)
    assert registry.call("GET", "/subjects/a/versions/1?deleted=true") == (404, 40402)
    assert registry.call("GET", f"/schemas/ids/{number}") == (404, 40403)
    assert registry.call("DELETE", "/subjects/a/versions/latest") == (200, 2)


def test_subjects_are_deleted_twice(registry: Registry) -> None:
    registry.register("a", ORDER)
    registry.register("a", WITH_NOTE)
    assert registry.call("DELETE", "/subjects/a?permanent=true") == (404, 40405)
    assert registry.call("DELETE", "/subjects/a") == (200, [1, 2])
    assert registry.call("DELETE", "/subjects/a") == (404, 40404)
    assert registry.call("GET", "/subjects/a/versions") == (404, 40401)
    assert registry.get("/subjects/a/versions?deleted=true") == [1, 2]
    assert registry.call("DELETE", "/subjects/a?permanent=true") == (200, [1, 2])
    assert registry.call("GET", "/subjects/a/versions?deleted=true") == (404, 40401)


def test_a_subject_that_a_topic_is_bound_to_is_kept(registry: Registry) -> None:
    registry.register("bound", ORDER)
    with connect_blocking(registry.broker_url) as client:
        client.create_topic("/default/orders")
        client.schemas.bind("/default/orders", "bound")
        assert registry.call("DELETE", "/subjects/bound") == (422, 42205)
        assert registry.call("DELETE", "/subjects/bound/versions/1") == (422, 42205)
        client.schemas.unbind("/default/orders")


# -- compatibility and modes -------------------------------------------------------------------------------------------


def test_an_incompatible_schema_is_a_conflict_with_every_reason(registry: Registry) -> None:
    registry.register("a", ORDER)
    assert registry.call("POST", "/subjects/a/versions", avro(OTHER_ID)) == (409, 409)
    changed = {"type": "record", "name": "Order", "fields": [*OTHER_ID["fields"], {"name": "more", "type": "int"}]}
    for path in ("/compatibility/subjects/a/versions/1", "/compatibility/subjects/a/versions"):
        status, answer = registry.call("POST", f"{path}?verbose=true", avro(changed))
        assert status == 200 and answer["is_compatible"] is False
        assert any("id" in one for one in answer["messages"]) and any("more" in one for one in answer["messages"])
        assert registry.call("POST", path, avro(changed)) == (200, {"is_compatible": False})
        assert registry.call("POST", path, avro(WITH_NOTE)) == (200, {"is_compatible": True})
        verbose = registry.call("POST", f"{path}?verbose=true&normalize=true", avro(WITH_NOTE))
        assert verbose == (200, {"is_compatible": True, "messages": []})
    for path in ("/compatibility/subjects/x/versions/latest", "/compatibility/subjects/x/versions"):
        assert registry.call("POST", path, avro(ORDER)) == (200, {"is_compatible": True})


def test_levels_are_set_read_and_taken_back(registry: Registry) -> None:
    assert registry.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.call("PUT", "/config", {"compatibility": "FULL_TRANSITIVE"}) == (
        200,
        {"compatibility": "FULL_TRANSITIVE"},
    )
    assert registry.get("/config") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    registry.register("a", ORDER)
    assert registry.get("/config/a?defaultToGlobal=true") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.call("PUT", "/config/a", {"compatibility": "NONE"}) == (200, {"compatibility": "NONE"})
    assert registry.get("/config/a") == {"compatibilityLevel": "NONE"}
    registry.register("a", OTHER_ID)
    assert registry.call("DELETE", "/config/a") == (200, {"compatibilityLevel": "NONE"})
    assert registry.call("GET", "/config/a") == (404, 40408)
    assert registry.call("DELETE", "/config") == (200, {"compatibilityLevel": "FULL_TRANSITIVE"})
    assert registry.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_a_read_only_subject_takes_nothing_and_keeps_everything(registry: Registry) -> None:
    registry.register("a", ORDER)
    assert registry.get("/mode") == {"mode": "READWRITE"}
    assert registry.call("PUT", "/mode/a?force=True", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert registry.get("/mode/a") == {"mode": "READONLY"}
    assert registry.call("POST", "/subjects/a/versions", avro(WITH_NOTE)) == (422, 42205)
    assert registry.call("DELETE", "/subjects/a") == (422, 42205)
    assert registry.call("DELETE", "/mode/a") == (200, {"mode": "READONLY"})
    assert registry.call("GET", "/mode/a") == (404, 40409)
    assert registry.get("/mode/a?defaultToGlobal=true") == {"mode": "READWRITE"}
    registry.register("a", WITH_NOTE)


# -- the listener ------------------------------------------------------------------------------------------------------


async def test_every_call_asks_the_authorizer_for_the_caller(http):
    asked: list[tuple[str, str]] = []

    class Nobody:
        def check(self, principal: Any, action: Any, resource: str) -> None:
            assert principal == ANONYMOUS
            asked.append((str(action), resource))
            raise Denied("not you")

        def allows(self, principal: Any, action: Any, resource: str) -> bool:
            return False

    http.broker.schemas._authorizer = Nobody()
    for method, path, body in [
        ("GET", "/subjects/a/versions", None),
        ("GET", "/subjects/a/versions/1", None),
        ("GET", "/subjects/a/versions/1/schema", None),
        ("GET", "/subjects/a/versions/1/referencedby", None),
        ("GET", "/config", None),
        ("GET", "/config/a", None),
        ("GET", "/mode", None),
        ("GET", "/mode/a", None),
        ("POST", "/subjects/a/versions", avro(ORDER)),
        ("POST", "/subjects/a", avro(ORDER)),
        ("POST", "/compatibility/subjects/a/versions/latest", avro(ORDER)),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/config/a", {"compatibility": "NONE"}),
        ("PUT", "/mode", {"mode": "READONLY"}),
        ("DELETE", "/subjects/a", None),
        ("DELETE", "/subjects/a/versions/1", None),
        ("DELETE", "/config/a", None),
        ("DELETE", "/mode/a", None),
    ]:
        asked.clear()
        async with await Peer.connect(http) as peer:
            data = None if body is None else json.dumps(body).encode()
            answer = await peer.request(method, f"/schema-registry{path}", data)
            assert (answer.status, answer.json()["error_code"]) == (403, 40301), (method, path)
            assert asked


@pytest.mark.parametrize("seed", range(5))
async def test_nonsense_is_never_a_mistake_of_the_broker(http, seed):
    """Random methods, paths, parameters and bodies: a 4xx or an answer, and never a 500."""
    chance = random.Random(seed)
    words = [
        "subjects",
        "schemas",
        "ids",
        "config",
        "mode",
        "versions",
        "compatibility",
        "latest",
        "a",
        "1",
        "-1",
        "%2F",
    ]
    words += ["%00", "%", "%zz", "..", "", "referencedby", "schema", "types", "contexts", "x" * 300, "%C3%28", "0x1"]
    bodies = [None, b"", b"{}", b"null", b"[1]", json.dumps(avro(ORDER)).encode(), b'{"mode": 1}', b"\x00\xff"]
    for _ in range(150):
        path = "/schema-registry/" + "/".join(chance.choice(words) for _ in range(chance.randrange(6)))
        query = chance.choice(
            ["", "?deleted=true", "?limit=-5&offset=-3", "?permanent=x", "?format=serialized", "?&&=&"]
        )
        method = chance.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"])
        async with await Peer.connect(http) as peer:
            peer.send(method, path + query, chance.choice(bodies), connection="close")
            answer = await peer.closed()
            assert b" 500 " not in answer.split(b"\r\n")[0] and answer, (seed, method, path + query, answer[:200])


async def test_many_clients_that_register_the_same_at_once_get_one_version(http):
    async def one(there: Any) -> int:
        async with await Peer.connect(http) as peer:
            answer = await peer.request(
                "POST", "/schema-registry/subjects/a/versions", json.dumps(avro(ORDER)).encode()
            )
            return answer.json()["id"]

    assert len(set(await asyncio.gather(*(one(http) for _ in range(30))))) == 1
    async with await Peer.connect(http) as peer:
        assert (await peer.request("GET", "/schema-registry/subjects/a/versions")).json() == [1]
