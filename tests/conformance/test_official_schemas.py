"""The official client: its registry client, and producers that refer to a schema."""

from __future__ import annotations

import pytest
from danube_client import OfficialClient

pytestmark = pytest.mark.process

REGISTERED, REFUSED = "OK", "FAILED_PRECONDITION"


def test_a_schema_of_every_type_reads_back_as_it_was_registered(official: OfficialClient) -> None:
    found = official.run("schemas.read_back", prefix="read-back")
    assert found == {
        kind: {"same": True, "subject": True, "version": 1, "type": kind, "fingerprint": True}
        for kind in ("json_schema", "avro", "protobuf", "string", "bytes", "number")
    }


def test_a_subject_has_one_id_and_versions_from_1_on(official: OfficialClient) -> None:
    assert official.run("schemas.versions", subject="versions") == {
        "ids": 1,
        "versions": [1, 2, 3],
        "definitions": True,
        "latest": 3,
        "no version": "NOT_FOUND",
        "no subject": "NOT_FOUND",
    }


def test_each_compatibility_mode_allows_and_refuses_its_changes(official: OfficialClient) -> None:
    """A check says beforehand what registration does."""
    allowed = {
        "none": {"with default", "without default", "removed required"},
        "backward": {"with default", "removed required"},
        "forward": {"with default", "without default"},
        "full": {"with default"},
    }
    assert official.run("schemas.compatibility", prefix="compatibility") == {
        f"{mode}, {change}": [True, False, REGISTERED] if change in those else [False, True, REFUSED]
        for mode, those in allowed.items()
        for change in allowed["none"]
    }


def test_a_producer_selects_a_version_and_the_consumer_sees_it(official: OfficialClient) -> None:
    seen, refused = official.run("schemas.selection", topic="/default/selection", subject="selection")
    assert seen == {
        "latest": [True, 3],
        "pinned": [True, 2],
        "pinned to the latest": [True, 3],
        "minimum": [True, 3],
        "none": [False, False],
    }
    assert refused == {
        "not registered": "NOT_FOUND",
        "no such version": "NOT_FOUND",
        "minimum too high": "NOT_FOUND",
        "second subject": "FAILED_PRECONDITION",
    }


def test_payloads_are_validated_by_the_policy_of_the_topic(official: OfficialClient) -> None:
    statuses, config = official.run("schemas.validation", topic="/default/validation", subject="validation")
    assert statuses == {"none": ["OK", "OK"], "warn": ["OK", "OK"], "enforce": ["OK", "INVALID_ARGUMENT"]}
    assert config == ["validation", "enforce", True]
