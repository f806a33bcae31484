"""The error tree as HTTP: every class has a status, and the answer tells what a native client would be told."""

import json

import pytest
from starlette.exceptions import HTTPException

from pydanube.gateway.http import errors as http_errors
from pydanube.model.errors import Invalid, NotOwner, Unavailable, tree

OURS = [kind for kind in tree() if kind.__module__ == "pydanube.model.errors"]


def test_every_class_of_the_tree_is_mapped_by_itself() -> None:
    assert set(http_errors.STATUS) == set(OURS)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_an_error_is_a_problem_with_its_status_code_and_message(kind) -> None:
    error = NotOwner("no such thing", "b:6655") if kind is NotOwner else kind("no such thing")
    answer = http_errors.respond(error)
    assert 400 <= answer.status_code < 600
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["title"] == kind.__name__
    assert problem["status"] == answer.status_code == http_errors.STATUS[kind]
    assert problem["detail"] == "no such thing"
    assert problem["code"] == kind.code
    assert problem.get("retryable", False) == kind.retryable


def test_a_class_of_another_package_has_the_status_of_its_base() -> None:
    class Invented(Invalid):
        pass

    try:
        assert http_errors.respond(Invented("x")).status_code == 400
    finally:
        del Invented  # out of the tree, which other tests walk


def test_the_owner_is_named() -> None:
    assert json.loads(http_errors.respond(NotOwner("elsewhere", "b:6655")).body)["owner"] == "b:6655"


def test_a_topic_that_was_unloaded_is_asked_for_again() -> None:
    """There is no other broker to ask, and the next request opens it."""
    answer = http_errors.respond(NotOwner("/default/orders was unloaded: open it again"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(answer.body)["retryable"] is True


def test_what_may_be_tried_again_says_when() -> None:
    assert http_errors.respond(Unavailable("busy")).headers["retry-after"] == "1"


def test_an_error_of_http_itself_is_a_problem_too() -> None:
    answer = http_errors.respond(HTTPException(405, "no", {"allow": "GET"}))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert json.loads(answer.body) == {"title": "HTTP", "status": 405, "detail": "no"}
