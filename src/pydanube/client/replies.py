"""Replies, as callers get them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Generic, cast

from pydanube.client.typed.value_reader import Decode
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import Invalid, RequestFailed


@dataclass(frozen=True, slots=True)
class Reply(Generic[ValueT]):
    """A reply to a request."""

    payload: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    error: RequestFailed | None = None
    """Why the request failed, if it did; only `client.gather` returns such replies."""
    _decode: Decode[ValueT] | None = field(default=None, repr=False, compare=False)

    def value(self) -> ValueT:
        """Decode the payload as the caller's `answer` says, and return the value; without one, return the payload.

        Raises the error of a request that failed, and Invalid if the payload does not fit.
        """
        if self.error is not None:
            raise copy(self.error)
        if self._decode is None:
            return cast("ValueT", self.payload)
        try:
            return self._decode(self.payload)
        except Exception as error:  # of whatever library decodes it, or of the user's own class
            raise Invalid(f"the reply cannot be decoded: {error}") from error
