"""The OpenAPI document: whether it is valid and complete, and whether the broker answers as it says.

schemathesis makes requests from the document, right and wrong ones. Their number is bounded by examples; the choice of
examples is fixed, so that a failure can be repeated.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from exhaustive import several
from pydanube import testing
from pydanube.gateway.http.api.openapi import document, statuses
from pydanube.gateway.http.api.operations import PATH_PARAMETERS
from pydanube.gateway.http.api.table import OPERATIONS
from pydanube.gateway.http.errors import STATUS

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document(OPERATIONS)))
PARTITIONS_MAX = 8
"""Requests for the thousands of partitions that are allowed would take long."""


def loaded_document() -> Any:
    changed = json.loads(json.dumps(DOCUMENT))
    for schema in changed["components"]["schemas"].values():
        counted = schema.get("properties", {}).get("partitions", {})
        if counted.get("type") == "integer":
            counted["maximum"] = PARTITIONS_MAX
    return schemathesis.openapi.from_dict(changed)


SCHEMA = loaded_document()
TIMEOUT_S = 60
EXAMPLES = several(2, 6)
"""Requests of each operation, right and wrong ones each."""


def is_no_fault_of_the_broker(context: Any, response: Any, case: schemathesis.Case) -> bool | None:
    """Check that the broker did not fail. Only a request for a reply may get 504: no consumer replied."""
    if response.status_code == 504 and case.path.endswith("/request"):
        return None
    return schemathesis.checks.not_a_server_error(context, response, case)


CHECKS = [is_no_fault_of_the_broker, status_code_conformance, content_type_conformance]
bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CALLED = [one for one in OPERATIONS if "text/event-stream" not in one.reply_media]
"""Streams do not end."""

by_operation = pytest.mark.parametrize("operation", CALLED, ids=lambda one: one.name)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with testing._server_thread(None, {"topics_ack_level": "written"}) as server:
        yield server.http_url


def prepare(url: str) -> None:
    """Create what the examples of the document name, unless it is there."""
    avro = json.dumps({"format": "avro", "text": '"long"'}).encode()
    for method, path, body in (
        ("PUT", "/api/v1/topics/default/orders", b'{"partitions": 2}'),
        ("PUT", "/api/v1/topics/default/orders/subscriptions/billing", b""),
        ("POST", "/api/v1/schemas/orders-value/versions", avro),
    ):
        answer = requests.request(method, url + path, data=body, timeout=TIMEOUT_S)
        assert answer.status_code in (200, 201, 409), answer.text


def is_refused(context: Any, response: Any, case: schemathesis.Case) -> bool | None:
    """Check that a wrong request is refused; schemathesis does not know all statuses that do so."""
    return None if response.status_code in (412, 413, 431) else negative_data_rejection(context, response, case)


def run(operation: Any, url: str, mode: schemathesis.GenerationMode, own_check: Any) -> None:
    """Send requests. Half of them name what exists, which may make a wrong request right: those are not `own_check`ed
    where wrong ones are asked for."""
    prepare(url)
    strategy = SCHEMA[operation.path][operation.method].as_strategy(generation_mode=mode)
    known = {name: PATH_PARAMETERS[name].example for name in path_names(operation)}

    @bounded
    @given(case=strategy, is_known=st.booleans())
    def check(case: schemathesis.Case, is_known: bool) -> None:
        checks = [*CHECKS, own_check]
        if is_known:
            case.path_parameters = dict(known)
            checks = checks if mode is schemathesis.GenerationMode.POSITIVE else CHECKS
        case.validate_response(case.call(base_url=url), checks=checks)

    check()


def can_be_wrong(operation: Any) -> bool:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    return "parameters" in described or "requestBody" in described


def path_names(operation: Any) -> list[str]:
    return [one[1:-1] for one in operation.path.split("/") if one.startswith("{")]


@by_operation
def test_right_requests_are_answered_as_the_document_says(operation: Any, url: str) -> None:
    run(operation, url, schemathesis.GenerationMode.POSITIVE, response_schema_conformance)


@pytest.mark.parametrize("operation", [one for one in CALLED if can_be_wrong(one)], ids=lambda one: one.name)
def test_wrong_requests_are_answered_as_the_document_says(operation: Any, url: str) -> None:
    run(operation, url, schemathesis.GenerationMode.NEGATIVE, is_refused)


def test_the_document_is_valid_openapi() -> None:
    errors = [f"{error.instance_path}: {error.message[:200]}" for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)]
    assert errors == []
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_the_document_is_complete() -> None:
    """Everything that a caller has to know is there, and every reference leads somewhere."""
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    for path, operations in DOCUMENT["paths"].items():
        for method, described in operations.items():
            where = f"{method} {path}"
            assert described["summary"] and not described["summary"].endswith("."), where
            assert described["tags"][0] in {one["name"] for one in DOCUMENT["tags"]}, where
            for parameter in described.get("parameters", ()):
                assert parameter["description"], (where, parameter["name"])
                check_bounded(parameter["schema"], (where, parameter["name"]))
            for status, response in described["responses"].items():
                is_empty = status == "204" or "content" not in resolve(response)
                assert is_empty or all(examples_of(resolve(response))), (where, status)
            for content in described.get("requestBody", {}).get("content", {}).values():
                assert "example" in content or "$ref" not in content["schema"], where


def check_bounded(schema: dict[str, Any], where: Any) -> None:
    if schema.get("type") == "string":
        assert schema.keys() & {"maxLength", "enum", "pattern"}, where
    if schema.get("type") == "integer":
        assert "minimum" in schema, where
        assert "maximum" in schema or "exclusiveMaximum" in schema, where


def resolve(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference leads to, or the value itself."""
    found: Any = value
    while "$ref" in found:
        path = found["$ref"].removeprefix("#/").split("/")
        found = DOCUMENT
        for one in path:
            found = found[one]
    return found


def examples_of(response: dict[str, Any]) -> list[bool]:
    return ["example" in media for kind, media in response["content"].items() if kind.endswith("json")]


def test_every_example_fits_its_schema() -> None:
    examples = 0
    for operations in DOCUMENT["paths"].values():
        for described in operations.values():
            contents = [described.get("requestBody", {}), *described["responses"].values()]
            for content in contents:
                for media in resolve(content).get("content", {}).values():
                    if "example" in media:
                        schema = {**media["schema"], "components": DOCUMENT["components"]}
                        Draft202012Validator(schema).validate(media["example"])
                        examples += 1
    assert examples > len(OPERATIONS)


def test_the_statuses_of_an_error_are_described() -> None:
    described = {int(name.removeprefix("Problem")) for name in DOCUMENT["components"]["responses"]}
    assert set(STATUS.values()) <= described
    for operation in OPERATIONS:
        assert all(one < 300 or one in described for one in statuses(operation))


def test_the_documentation_lists_every_path() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    topic = "topics/{namespace}/{topic}"
    for operation in OPERATIONS:
        if operation.tag != "data":
            path = operation.path.removeprefix("/api/v1/").replace(topic, "T")
            path = path.replace("T/subscriptions/{subscription}", "S")
            (line,) = [one for one in text.splitlines() if one.startswith("|") and f"`{path}`" in one]
            assert operation.method in line.split("|")[2], line
