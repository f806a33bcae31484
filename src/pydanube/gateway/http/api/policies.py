"""What the operations on the policies of namespaces and topics share."""

from __future__ import annotations

from typing import Final

from .operations import ApiCall

PATCH_TEXT: Final = """\
A policy that the body leaves out stays as it is; one that is null is inherited again. The change is durable and in
force when it is answered.
"""


def changes_of(call: ApiCall) -> dict[str, int | None]:
    """Return the policies that the body changes."""
    return {name: getattr(call.body, name) for name in sorted(call.given)}
