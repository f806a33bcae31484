"""Checks that every published batch must pass, from any listener. Its bytes were verified when it was opened."""

from __future__ import annotations

from pydanube.codec.batch import Batch
from pydanube.model.errors import Invalid
from pydanube.model.policies import Policies


def check_publishable(batch: Batch, topic: str, policies: Policies) -> None:
    """Raise Invalid if the batch has a row selection, or a message larger than the topic's policies allow."""
    if not batch.header.publishable:
        raise Invalid("a batch with a row selection cannot be published: send whole rows")
    limit = policies.message_bytes_max
    assert limit is not None
    if batch.header.plain_length <= limit:
        return
    largest = batch.largest_payload_bytes
    if largest > limit:
        raise Invalid(
            f"a message of {largest} bytes is larger than topic {topic} takes, which is {limit}: send smaller ones, or "
            f"raise its policy message_bytes_max (and limits.message_bytes_max, which no policy passes)"
        )
