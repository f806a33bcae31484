"""What an operation is: its fields are the request, its class variables say what is true of it whoever asks."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

CALL_SECONDS: Final = 5.0
"""How long a call of another broker may take, with connecting. A broker that answers nothing for so long would lose its
session soon."""

CHANGE_SECONDS: Final = 30.0
"""The same for requests that wait for a disk or for an object store before they are answered."""


class Request(msgspec.Struct, tag_field="op", omit_defaults=True, kw_only=True):
    """Base of everything that is asked for with a REQUEST frame."""

    for_brokers: ClassVar[bool] = False
    """Whether only another broker of the cluster may ask for it."""
    seconds: ClassVar[float] = CALL_SECONDS
    """How long a broker waits for the answer of another one."""


class Done(msgspec.Struct):
    """The request was carried out; there is nothing to report."""
