"""What happens to a message that its consumer failed to process: when it is redelivered, how often, and what then.

Only nacks and ack timeouts count as failures. A redelivery because a consumer disconnected or the broker restarted does
not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from .errors import Invalid
from .names import TopicName
from .text import Word

DELAY_MS_MAX: Final = 24 * 3600 * 1000
"""The longest delay before a redelivery."""

REASON_CHARACTERS_MAX: Final = 500
"""The longest reason of a failure; longer ones are cut."""

ACK_TIMEOUT: Final = "ack timeout"
"""The reason of a failure by ack timeout."""


class Backoff(Word):
    """How the redelivery delay grows with the failures. Numbers as in the Danube gRPC API."""

    FIXED = 0
    EXPONENTIAL = 1


class Poison(Word):
    """What happens to a message that was redelivered as often as allowed. Numbers as in the Danube gRPC API."""

    DEAD_LETTER = 0
    """It is published to the dead letter topic, with attributes that describe its failures, and settled."""
    BLOCK = 1
    """It stays and blocks its subscription (key-shared: its key) until an operator settles it or changes the policy."""
    DROP = 2
    """It is settled, and counted."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The failure policy of a subscription. By default messages are redelivered without limit, with a growing delay,
    and there is no ack timeout.

    `backoff` and `poison` may be given as text, such as "fixed" and "drop".
    """

    redeliveries_max: int | None = None
    """None: without limit."""
    ack_timeout_ms: int = 0
    """0: no timeout."""
    delay_ms: int = 1000
    delay_max_ms: int = 60_000
    backoff: Backoff = Backoff.EXPONENTIAL
    poison: Poison = None  # type: ignore[assignment]
    """Default: dead-letter if there is a dead letter topic, else block."""
    dead_letter_topic: str = ""

    def __post_init__(self) -> None:
        poison, backoff = cast(Poison | str | None, self.poison), cast(Backoff | str, self.backoff)
        if poison is None:
            poison = Poison.DEAD_LETTER if self.dead_letter_topic else Poison.BLOCK
        object.__setattr__(self, "poison", poison if isinstance(poison, Poison) else Poison.parse(poison))
        object.__setattr__(self, "backoff", backoff if isinstance(backoff, Backoff) else Backoff.parse(backoff))
        if self.redeliveries_max is not None and not 0 <= self.redeliveries_max < 2**16:
            raise Invalid(f"redeliveries_max={self.redeliveries_max} is out of range: use 0 to {2**16 - 1}, or none")
        if not 0 <= self.ack_timeout_ms <= DELAY_MS_MAX:
            raise Invalid(f"ack_timeout_ms={self.ack_timeout_ms} is out of range: use 0 (off) to {DELAY_MS_MAX}")
        if not 0 <= self.delay_ms <= self.delay_max_ms <= DELAY_MS_MAX:
            raise Invalid(
                f"delay_ms={self.delay_ms} and delay_max_ms={self.delay_max_ms} must be 0 or more, in this order, and "
                f"at most {DELAY_MS_MAX}"
            )
        if self.dead_letter_topic:
            TopicName.parse(self.dead_letter_topic)
        elif self.poison is Poison.DEAD_LETTER:
            raise Invalid("poison policy dead-letter needs a topic for them: dead_letter_topic (--dead-letter-topic)")

    def next_delay_ms(self, failures: int) -> int:
        """Return the redelivery delay after failure number `failures` of a message."""
        if self.backoff is Backoff.FIXED:
            return self.delay_ms
        return min(self.delay_ms << min(failures - 1, 32), self.delay_max_ms)

    def bounded_delay_ms(self, failures: int, wanted_ms: int) -> int:
        """Return the redelivery delay if `wanted_ms` counts only between the delay of the policy and its maximum, which
        is the rule of the Danube gRPC API."""
        return min(max(self.next_delay_ms(failures), wanted_ms), self.delay_max_ms)

    def is_exhausted(self, failures: int) -> bool:
        """Return whether a message that failed this many times is not redelivered any more."""
        return self.redeliveries_max is not None and failures > self.redeliveries_max


NATIVE: Final = FailurePolicy()
"""The default for subscriptions created over the native protocol."""

DANUBE: Final = FailurePolicy(redeliveries_max=5, ack_timeout_ms=30_000)
"""The default for subscriptions created over the Danube gRPC API."""
