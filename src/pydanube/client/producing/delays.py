"""When a message is to be delivered: at a time, or after a while."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf, isnan
from typing import Final

from pydanube.model.errors import Invalid
from pydanube.model.limits import DELIVERY_DELAY_S_MAX
from pydanube.model.positions import micros_from_datetime
from pydanube.runtime.clock import MICROSECONDS, Clock

YEAR_S: Final = 366 * 24 * 3600


def delivery_time_us(deliver_at: datetime | None, deliver_after: float | timedelta | None, clock: Clock) -> int:
    """Microseconds since 1970; 0 means at once. Raises Invalid."""
    time_us = _time_us(deliver_at, deliver_after, clock)
    if time_us - clock.now_us() > DELIVERY_DELAY_S_MAX * MICROSECONDS:
        given = f"deliver_after={deliver_after!r}" if deliver_at is None else f"deliver_at={deliver_at.isoformat()}"
        raise Invalid(f"{given} is more than {DELIVERY_DELAY_S_MAX // YEAR_S} years ahead: delays are seconds")
    return time_us


def _time_us(deliver_at: datetime | None, deliver_after: float | timedelta | None, clock: Clock) -> int:
    if deliver_at is not None:
        if deliver_after is not None:
            raise Invalid("deliver_at and deliver_after exclude each other: give one of them")
        if not isinstance(deliver_at, datetime):
            raise Invalid(f"deliver_at={deliver_at!r} is not a datetime; for a number of seconds use deliver_after")
        return max(0, micros_from_datetime(deliver_at))
    if deliver_after is None:
        return 0
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or isnan(seconds) or not 0 <= seconds < inf:
        raise Invalid(f"deliver_after={deliver_after!r} is not a delay: use seconds, 0 or more, or a timedelta")
    return clock.now_us() + round(seconds * MICROSECONDS) if seconds else 0
