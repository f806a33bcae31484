"""The error tree: each class stands for one reaction of the caller.

A new class needs a new reaction, or its own status on a listener. Every listener maps this tree exactly once, and a
test walks it so that no class is left unmapped. `code` is sent over the network and never stored; a number is never
given to another class.
"""

from __future__ import annotations

from typing import ClassVar


class DanubeError(Exception):
    """Base of every error that pydanube raises on purpose."""

    code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(DanubeError):
    """Fix the request, then send it again."""

    code = 2


class Refused(DanubeError):
    """The state of the system says no; read the message."""

    code = 3


class NotFound(Refused):
    """The named topic, subscription or other object does not exist; check the name, or create it."""

    code = 4


class AlreadyExists(Refused):
    """An object of this name exists already; use it, or choose another name."""

    code = 5


class Denied(Refused):
    """The caller is authenticated, but has no permission for this; ask for it."""

    code = 6


class Unauthenticated(Refused):
    """The caller is not authenticated; send valid credentials."""

    code = 7


class Full(Refused):
    """A limit is reached; wait or raise it."""

    code = 8


class NotOwner(Refused):
    """Ask the broker named in `owner` (empty: look the owner up again)."""

    code = 9

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class StaleEpoch(Refused):
    """You were fenced; stop writing."""

    code = 10


class Held(Refused):
    """Another consumer holds the exclusive subscription; close that one, take over under its name, or use another
    subscription."""

    code = 13


class Conflict(Refused):
    """The object is not in the state that the request expects; read it again, then decide anew."""

    code = 14


class RequestFailed(Refused):
    """The responder answered a request with an error; read the message, and `kind` for the kind of error."""

    code = 15

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Unavailable(DanubeError):
    """Send the same request again, later."""

    code = 11
    retryable = True


class Corrupt(DanubeError):
    """Stored or sent bytes are not what was written; call a human."""

    code = 12


def internal_error(what: str, error: BaseException) -> DanubeError:
    """Return what a caller is told about a bug of the broker, which logs the rest."""
    return DanubeError(f"internal error in {what}: {type(error).__name__}; the broker's log has the details")


def tree() -> list[type[DanubeError]]:
    """Return every class of the tree, the root first."""
    classes: list[type[DanubeError]] = [DanubeError]
    for known in classes:
        classes.extend(known.__subclasses__())
    return classes


def from_code(code: int, message: str, owner: str = "") -> DanubeError:
    """Return the error that a peer sent. An unknown code, from a later release, becomes a plain DanubeError."""
    for known in tree():
        if known.code == code:
            return NotOwner(message, owner) if known is NotOwner else known(message)
    return DanubeError(message)
