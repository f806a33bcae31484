"""Expectations as columns of Spark: which rows are kept, which become dead letters, and how many failed.

A row meets an expectation only if its check is true; null counts as not met. Every check is counted for every row that
could be decoded.
What happens to a row is decided by the first expectation that it does not meet, in the order of the file; a message
that could not be decoded is decided by `on_decode_error` before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pydanube.model.dead_letters import LETTER_ATTRIBUTES
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX

from .definition import CHECKED, OBSERVED, UNDECODABLE, Action, Expectation, Pipeline

NOT_MET: Final = "an expectation is not met"
"""Begins the error of an expectation with the action "fail"; such a query is not started again."""

DECODE_ERROR: Final = "decode_error"

_ADDED_MAX: Final = 10
"""Attributes that a dead letter has beyond those of its message."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An expectation, or the rule for messages that cannot be decoded."""

    name: str
    met: Column
    action: Action
    topic: str
    reason: Column
    text: str


def rules_of(pipeline: Pipeline, name: str) -> list[Rule]:
    """Return what is expected of the rows of a source or transform, in the order in which it is decided."""
    found: list[Rule] = []
    source = pipeline.sources.get(name)
    if source is not None and source.on_decode_error == "dead-letter":
        failed = f.col(DECODE_ERROR)
        reason = f.concat(f.lit("cannot be decoded: "), failed)
        found.append(
            Rule(UNDECODABLE, failed.isNull(), "dead-letter", source.dead_letter_topic, reason, "it can be decoded")
        )
    return found + [_rule(one) for one in pipeline.expectations.get(name, ())]


def _rule(one: Expectation) -> Rule:
    met = f.coalesce(f.expr(one.check.text), f.lit(False))
    text = " ".join(one.check.text.split())
    return Rule(one.name, met, one.action, one.topic, f.lit(f"expectation {one.name} is not met: {text}"), text)


def observe(frame: DataFrame, name: str, rules: Sequence[Rule]) -> DataFrame:
    """Count the rows of each micro-batch, and those that do not meet each rule, in the metrics of the query.

    A message that cannot be decoded has no columns to check: it counts for that rule only.
    """
    readable = next((rule.met for rule in rules if rule.name == UNDECODABLE), f.lit(True))
    counts = [
        f.count_if(~rule.met if rule.name == UNDECODABLE else readable & ~rule.met).alias(rule.name) for rule in rules
    ]
    return frame.observe(f"{OBSERVED}{name}", f.count(f.lit(1)).alias(CHECKED), *counts)


def keep_rows(frame: DataFrame, name: str, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows that meet all rules. A row that is decided by the action "fail" fails the query."""
    return frame.where(_decide(frame, name, rules, lambda _: f.lit(False), f.lit(True))) if rules else frame


def dead_letters(frame: DataFrame, pipeline: Pipeline, name: str, rules: Sequence[Rule]) -> DataFrame:
    """Return the dead letters among the rows, as messages with topic, key, payload, attributes and publish time."""
    letters = frame.where(_decide(frame, name, rules, lambda rule: f.lit(rule.action == "dead-letter"), f.lit(False)))
    topic, reason = (
        _first(rules, lambda rule: f.lit(rule.topic), f.lit("").cast("string")),
        _first(rules, lambda rule: rule.reason, f.lit("").cast("string")),
    )
    if name in pipeline.sources:
        return _letters_of_messages(letters, pipeline, topic, reason)
    return _letters_of_rows(letters, pipeline, name, topic, reason)


def _first(rules: Sequence[Rule], value: Callable[[Rule], Column], otherwise: Column) -> Column:
    """Return the value for the first rule that a row does not meet."""
    chain: Column | None = None
    for rule in rules:
        chain = f.when(~rule.met, value(rule)) if chain is None else chain.when(~rule.met, value(rule))
    return otherwise if chain is None else chain.otherwise(otherwise)


def _decide(
    frame: DataFrame, name: str, rules: Sequence[Rule], value: Callable[[Rule], Column], otherwise: Column
) -> Column:
    """As `_first`, but a row that is decided by the action "fail" raises an error that names the message."""
    names = {column.lower() for column in frame.columns}
    where = f.lit("")
    if {"topic", "partition", "offset"} <= names:
        place = (f.lit(" by "), f.col("topic"), f.lit("["), f.col("partition"), f.lit("] offset "), f.col("offset"))
        where = f.coalesce(f.concat(*(one.cast("string") for one in place)), f.lit(""))

    def decided(rule: Rule) -> Column:
        if rule.action != "fail":
            return value(rule)
        told = f.lit(f"{NOT_MET}: {rule.name} of {name}, which is {rule.text}")
        return f.raise_error(f.concat(told, where)).cast("boolean")

    return _first(rules, decided, otherwise)


def _letters_of_messages(letters: DataFrame, pipeline: Pipeline, topic: Column, reason: Column) -> DataFrame:
    """Return copies of the messages, with the attributes that the broker's dead letters have."""
    partition, offset = f.col("partition").cast("string"), f.col("offset").cast("string")
    letter_id = f.concat_ws("/", f.col("topic"), partition, f.lit(pipeline.name), offset)
    added = {
        "x-original-topic": f.col("topic"),
        "x-original-subscription": f.lit(pipeline.name),
        "x-original-partition": partition,
        "x-original-topic-offset": offset,
        "x-poison-policy": f.lit("dead-letter"),
        "x-delivery-attempt": f.lit("1"),
        "x-failure-reason": reason,
        "x-dead-letter-id": letter_id,
    }
    return letters.select(
        topic.alias("topic"), "key", "payload", _with_attributes(added).alias("attributes"), "publish_time"
    )


def _with_attributes(added: dict[str, Column]) -> Column:
    """Return the message's own attributes, up to the limit, and those of a dead letter."""
    assert len(added) <= _ADDED_MAX
    own = f.coalesce(f.col("attributes"), f.expr("cast(map() as map<string, string>)"))
    kept = f.map_filter(own, lambda key, _: ~key.isin(*sorted(LETTER_ATTRIBUTES)))
    fitting = f.map_from_entries(f.slice(f.map_entries(kept), 1, ATTRIBUTES_PER_MESSAGE_MAX - _ADDED_MAX))
    pairs = [one for name, value in added.items() for one in (f.lit(name), value)]
    return f.map_concat(fitting, f.create_map(*pairs))


def _letters_of_rows(letters: DataFrame, pipeline: Pipeline, name: str, topic: Column, reason: Column) -> DataFrame:
    """Return the rows of a transform as JSON. They are no message of a topic, so they name none as their origin."""
    pairs = {
        "x-pipeline": f.lit(pipeline.name),
        "x-transform": f.lit(name),
        "x-poison-policy": f.lit("dead-letter"),
        "x-failure-reason": reason,
    }
    attributes = f.create_map(*(one for key, value in pairs.items() for one in (f.lit(key), value)))
    key = f.col("key").cast("string") if "key" in letters.columns else f.lit(None).cast("string")
    payload = f.to_json(f.struct(*(f.col(f"`{column}`") for column in letters.columns)))
    return letters.select(
        topic.alias("topic"), key.alias("key"), payload.alias("payload"), attributes.alias("attributes")
    )
