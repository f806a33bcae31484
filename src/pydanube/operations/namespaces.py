"""Namespaces, and the policies of namespaces and topics."""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube.model.names import TopicName, parse_namespace
from pydanube.model.paging import NamePage
from pydanube.model.policies import DEFAULTS, Policies, PolicyReport
from pydanube.model.security import Action

from .operation import Done, Needs, Operation, Rest
from .paging import After, Filter, NameOrder, PageLimit

_POLICIES: Final = PolicyReport(Policies(retention_s=86_400), DEFAULTS)
_PATH: Final = "/namespaces/{namespace}"
_TOPIC: Final = "/topics/{namespace}/{topic}"

_rest = partial(Rest, tag="namespaces")
_get_policies = partial(Rest, "GET", answer=_POLICIES, has_etag=True)
_set_policies = partial(
    Rest,
    "PATCH",
    body=("changes", Policies),
    example={"retention_s": 86_400, "ttl_s": None},
    answer=_POLICIES,
    has_etag=True,
)


def policy_target(text: str) -> TopicName | str:
    """Read what has policies: a topic's full name, or a namespace. Raises Invalid."""
    return TopicName.parse(text) if text.startswith("/") else parse_namespace(text)


def _on_namespace(action: Action) -> Needs:
    return Needs(action, lambda operation: f"/{parse_namespace(operation.namespace)}")


def _on_target(action: Action) -> Needs:
    return Needs(action, lambda operation: f"/{str(policy_target(operation.target)).removeprefix('/')}")


class CreateNamespace(Operation[Done], tag="namespace.create"):
    """Create a namespace."""

    needs = _on_namespace(Action.CREATE)
    is_repeatable = False
    rest = _rest("PUT", _PATH, status=201, location="/namespaces/{1.namespace}/policies")
    namespace: str


class DeleteNamespace(Operation[Done], tag="namespace.delete"):
    """Delete a namespace.

    Refused while topics are in it.
    """

    needs = _on_namespace(Action.DELETE)
    is_repeatable = False
    rest = _rest("DELETE", _PATH)
    namespace: str
    expected: str = ""


class ListNamespaces(Operation[NamePage], tag="namespace.list"):
    """List namespaces.

    Those that the caller may see, and those of topics that it may see.
    """

    rest = _rest("GET", "/namespaces", defaults={"limit": 100}, answer=NamePage(["default", "shop"]))
    filter: Filter = ""
    """A glob (`*`, `?`, `[...]`) that must match the whole name; without any of these, a part of the name."""
    sort: NameOrder = "name"
    """`name`, ascending; with a `-` before it, descending."""
    limit: PageLimit = 0
    """The most entries of one page."""
    after: After = ""
    """The token of the page before; empty: the first page."""


class GetPolicies(Operation[PolicyReport], tag="policies.get"):
    """Get the policies of a topic or a namespace."""

    needs = _on_target(Action.DESCRIBE)
    rest = (
        _get_policies(
            f"{_PATH}/policies",
            tag="namespaces",
            name="getNamespacePolicies",
            names={"namespace": "target"},
            summary="Get the policies of a namespace",
        ),
        _get_policies(
            f"{_TOPIC}/policies",
            tag="topics",
            name="getTopicPolicies",
            names={"topic": "target"},
            summary="Get the policies of a topic",
        ),
    )
    target: str
    """/namespace/topic, or a namespace."""


class SetPolicies(Operation[PolicyReport], tag="policies.set"):
    """Change policies of a topic or a namespace.

    A policy that is left out stays as it is; one that is null is inherited again. The change is durable and in force
    when it is answered.
    """

    needs = _on_target(Action.ADMINISTER)
    rest = (
        _set_policies(
            f"{_PATH}/policies",
            tag="namespaces",
            name="setNamespacePolicies",
            names={"namespace": "target"},
            summary="Change policies of a namespace",
        ),
        _set_policies(
            f"{_TOPIC}/policies",
            tag="topics",
            name="setTopicPolicies",
            names={"topic": "target"},
            summary="Change policies of a topic",
        ),
    )
    target: str
    changes: dict[str, int | None]
    expected: str = ""


NamespaceOperation = CreateNamespace | DeleteNamespace | ListNamespaces | GetPolicies | SetPolicies
