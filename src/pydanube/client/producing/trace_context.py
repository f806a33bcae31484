"""Puts the current span of OpenTelemetry into the attributes of messages that are sent.

Nothing is imported for it: a program that does not use OpenTelemetry pays for one lookup in a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from pydanube.model.trace_context import TRACEPARENT, TraceContext

from .message_intake import Attributes

LOADED = sys.modules
OPENTELEMETRY = "opentelemetry.trace"
"""While LOADED has no module of this name, there is no span."""


def current_context() -> dict[str, str] | None:
    """Return the attributes of the span that is active here; None if none is, or the program has no OpenTelemetry."""
    trace = LOADED.get(OPENTELEMETRY)
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        found = TraceContext(
            context.trace_id, context.span_id, int(context.trace_flags), context.trace_state.to_header()
        )
    except AttributeError:  # the module is only half imported, or not what it is called
        return None
    return found.attributes()


def with_context(attributes: Attributes | None) -> Attributes | None:
    """Return the attributes of a message with the current context added, unless the message has one of its own."""
    context = current_context() if OPENTELEMETRY in LOADED else None
    return attributes if context is None else _merged(context, attributes)


def with_context_many(
    attributes: Sequence[Attributes | None] | None, payloads: Sequence[object]
) -> Sequence[Attributes | None] | None:
    """Return the attributes of many messages with the current context added to each."""
    context = current_context() if OPENTELEMETRY in LOADED else None
    if context is None:
        return attributes
    if attributes is None:
        return [context] * len(payloads)
    return [_merged(context, one) for one in attributes]


def _merged(context: dict[str, str], attributes: Attributes | None) -> Attributes | None:
    if not attributes:
        return context
    if not isinstance(attributes, Mapping) or TRACEPARENT in attributes:
        return attributes
    fits = len(attributes) + len(context) <= ATTRIBUTES_PER_MESSAGE_MAX
    return {**attributes, **context} if fits else attributes
