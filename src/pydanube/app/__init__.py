"""SERVICES. Functions that are called with messages, on a schedule, and what runs them.

Lives here      `App` and what its decorators take; handlers and their parameters; subscribers; schedules
May import      client, codec, runtime, model
Flows through   a received message becomes a value, the function's result becomes a message, then the first one is acked
Never           anything that a program could not do with the public client itself; broker or gateway code

application     `App`: collects handlers, and runs them
outcomes        `Reject`, `Retry`, `PartialFailure`, which a handler may raise; `Retries`: how often it is tried again
handlers        reads the annotations of a function, and calls it; `Depends`
subscribers     one subscription: receives, calls the handler, publishes its result, acks
handler_spans   the span of OpenTelemetry in which a handler runs
responders      a subscription whose messages are requests: what the handler returns is the reply
running         an app at work: the client, shared producers, the orderly end
schedules       when a schedule is due; `ticks` makes the messages that say so
serving         an app as a process; `supervisor`: several of them; `health`: their HTTP port
asyncapi        what an app receives and publishes, for people and as an AsyncAPI document
lanes           several messages at once, those of one key in order

Importing this package is cheap, as for `pydanube` itself: a module is imported when one of its names is used first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydanube.runtime.late_imports import late

if TYPE_CHECKING:
    from .application import App
    from .handlers import Depends
    from .outcomes import PartialFailure, Reject, Retries, Retry
    from .ticks import Tick

__all__ = ["App", "Depends", "PartialFailure", "Reject", "Retries", "Retry", "Tick"]

_MODULES: Final = {
    "App": ".application",
    "Depends": ".handlers",
    "PartialFailure": ".outcomes",
    "Reject": ".outcomes",
    "Retries": ".outcomes",
    "Retry": ".outcomes",
    "Tick": ".ticks",
}
"""The module of each name that is exported here."""
__getattr__ = late(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
