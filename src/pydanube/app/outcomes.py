"""What becomes of a message that its handler could not process: what a handler may raise, and how often it is retried.

Any other exception counts as a failure: the message is redelivered as `Retries` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydanube.model.errors import Invalid
from pydanube.model.failure import DELAY_MS_MAX, Backoff, FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.text import Duration, read


class Reject(Exception):
    """Raised by a handler: no further try can process this message. It goes to the dead letters now."""


class Retry(Exception):
    """Raised by a handler: deliver this message again, after `delay` seconds. It counts as a failure."""

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        """`delay` None: as `Retries` says."""
        super().__init__(reason)
        self.delay = delay


class PartialFailure(Exception):
    """Raised by a handler of lists: only these messages failed, the others are acked.

    ```python
    raise pydanube.PartialFailure({3: ValueError("no such customer")})
    ```
    """

    def __init__(self, failures: Mapping[int, Exception]) -> None:
        """`failures`: by the index in the list, the exception that a handler of single messages would have raised."""
        super().__init__(f"{len(failures)} messages of the list failed")
        self.failures = dict(failures)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a message is redelivered after its handler failed, how long after, and what happens then.

    ```python
    pydanube.Retries(5, backoff="1s..5m", dead_letter=True)
    ```
    """

    count: int = 5
    """Redeliveries after the first try."""
    backoff: str = "1s..5m"
    """The wait before a redelivery: doubled each time, from the first to the second; "10s" is always ten seconds."""
    dead_letter: bool | str = True
    """Where the message goes then: True is the topic ``<topic>-<subscription>-dlq``, text is the name of a topic, False
    is nowhere: the message stays, and blocks its subscription (key-shared: its key) until somebody looks at it."""

    def policy(self, topic: str, subscription: str) -> FailurePolicy:
        """Return the failure policy of a subscription to `topic`, a name or a pattern. Raises Invalid."""
        first, between, last = self.backoff.partition("..")
        kind = Duration(0, DELAY_MS_MAX / 1_000)
        delay = read(kind, first, "backoff")
        longest = read(kind, last, "the end of backoff") if between else delay
        dead_letters = ""
        if self.dead_letter is True:
            dead_letters = _dead_letter_topic(topic, subscription)
        elif self.dead_letter:
            dead_letters = str(TopicName.parse(self.dead_letter))
        return FailurePolicy(
            redeliveries_max=self.count,
            delay_ms=round(delay * 1_000),
            delay_max_ms=round(longest * 1_000),
            backoff=Backoff.EXPONENTIAL if between else Backoff.FIXED,
            poison=Poison.DEAD_LETTER if dead_letters else Poison.BLOCK,
            dead_letter_topic=dead_letters,
        )


def _dead_letter_topic(topic: str, subscription: str) -> str:
    try:
        name = TopicName.parse(topic)
        return str(TopicName.parse(f"/{name.namespace}/{name.topic}-{subscription}-dlq"))
    except Invalid:
        raise Invalid(
            f"no dead letter topic can be named after {topic!r} and {subscription!r}: name one with "
            'retries=pydanube.Retries(dead_letter="/namespace/topic")'
        ) from None
