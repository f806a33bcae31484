"""What the operations on the policies of namespaces and topics share."""

from __future__ import annotations

from typing import Final

from pydanube.codec.native import requests as wire
from pydanube.model.policies import Policies

from .etags import tagged
from .operations import Answer, ApiCall

PATCH_TEXT: Final = """\
A policy that the body leaves out stays as it is; one that is null is inherited again. The change is durable and in
force when it is answered.
"""


def report(found: tuple[Policies, Policies, str]) -> Answer:
    """Return the answer with the policies of a namespace or topic, and its entity tag."""
    return tagged(wire.PolicyReport(*found), found[2])


def changes_of(call: ApiCall) -> dict[str, int | None]:
    """Return the policies that the body changes."""
    return {name: getattr(call.body, name) for name in sorted(call.given)}
