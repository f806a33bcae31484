"""The error tree as gRPC statuses: the only place that chooses a status for an error.

Existing clients repeat a call after UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED, and hand every other status
to the application. So what looking up again or trying again can cure is UNAVAILABLE here, although the native protocol
has classes of its own for it.
"""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from pydanube.model import errors

STATUS: Final[dict[type[errors.DanubeError], StatusCode]] = {
    errors.DanubeError: StatusCode.INTERNAL,
    errors.Invalid: StatusCode.INVALID_ARGUMENT,
    errors.Refused: StatusCode.FAILED_PRECONDITION,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.AlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.Denied: StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.Held: StatusCode.PERMISSION_DENIED,
    errors.Conflict: StatusCode.ABORTED,
    errors.RequestFailed: StatusCode.FAILED_PRECONDITION,
    errors.Full: StatusCode.RESOURCE_EXHAUSTED,
    errors.NotOwner: StatusCode.UNAVAILABLE,
    errors.StaleEpoch: StatusCode.UNAVAILABLE,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.Corrupt: StatusCode.DATA_LOSS,
}

_DETAILS_CHARACTERS_MAX: Final = 1_000
"""The longest text of a status. It may quote what the client sent, and must fit the 8 KiB that clients accept as
metadata, where each character may take nine bytes."""


class Status(Exception):
    """Raised by a service to end a call with a status of its own choice."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def not_implemented(details: str) -> Status:
    """Return the status for what a single broker does not have; `details` says why."""
    return Status(StatusCode.UNIMPLEMENTED, details)


def status_of(error: errors.DanubeError) -> StatusCode:
    """Return the status of an error; a class that is not in the table has that of its nearest base."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def details_of(text: str) -> str:
    """Return the text of a status, shortened to what clients accept."""
    return text if len(text) <= _DETAILS_CHARACTERS_MAX else f"{text[:_DETAILS_CHARACTERS_MAX]} ..."
