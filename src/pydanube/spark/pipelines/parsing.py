"""Turns the nodes of a pipeline file into a `Pipeline`: which keys there are, and what their values may be.

What is looked at beyond one key (references, SQL, functions, paths) is checked in `checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Final, TypeVar, cast

from pydanube.client.connection.servers import parse_servers
from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName
from pydanube.model.text import Duration, did_you_mean, nearest, read
from pydanube.spark.options import COMMON, KAFKAS, ONLY_BATCHES, READING, STORE_PREFIX, ReadOptions, WriteOptions
from pydanube.spark.tables.options import CATALOG_PREFIX, KNOWN, Format, TableOptions

from .definition import (
    TABLES,
    UNDECODABLE,
    Action,
    DecodeErrors,
    Expectation,
    OutputMode,
    Pipeline,
    Sink,
    Source,
    Transform,
    Trigger,
    Watermark,
)
from .file_places import Place, Problems, TextInFile
from .yaml_nodes import Mapped, Node, Scalar, Sequence, kind_of

TOP: Final = ("name", "servers", "checkpoint", "trigger", "spark", "sources", "transforms", "expectations", "sinks")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
DEFAULT_MASTER: Final = "local[*,4]"
INTERVAL: Final = Duration(0.000_001, 86_400, needs_unit=True)
BUILT_IN: Final = ("delta", "iceberg", "parquet", "danube", "console", "memory", "noop")
"""The formats that need nothing on Spark's class path."""
TABLE_OPTIONS: Final = tuple(one for one in KNOWN if one not in ("queryId", "batchId"))
TABLE_PREFIXES: Final = (CATALOG_PREFIX, STORE_PREFIX)

_MASTERS: Final = (
    re.compile(r"local(\[(\d{1,4}|\*)(,\d{1,4})?\])?"),
    re.compile(r"spark://[^\s/,:]+:\d{1,5}(,[^\s/,:]+:\d{1,5})*"),
    re.compile(r"yarn"),
    re.compile(r"k8s://\S+"),
    re.compile(r"sc://[^\s/:]+(:\d{1,5})?(/\S*)?"),
)
_MASTER_FORM: Final = "use local[2,4], spark://host:port, yarn, k8s://https://host:port or sc://host:port"

T = TypeVar("T")


def parse_pipeline(root: Node, file: Path, problems: Problems) -> Pipeline | None:
    """Parse the whole file; None if parts are missing without which nothing else can be checked."""
    if not isinstance(root, Mapped):
        problems.add(
            root.place, f"a pipeline file is a mapping with the keys {', '.join(TOP)}: this is {kind_of(root)}"
        )
        return None
    parser = _Parser(file, problems)
    return parser.pipeline(root)


class _Parser:
    def __init__(self, file: Path, problems: Problems) -> None:
        self._file = file
        self._directory = file.absolute().parent
        self._problems = problems

    def pipeline(self, root: Mapped) -> Pipeline | None:
        self._known(root, TOP, "a pipeline")
        for key in ("name", "checkpoint", "sources", "sinks"):
            self._required(root, key, "the pipeline")
        master, conf = self._spark(root.values.get("spark"))
        name = self._text(root, "name") or ""
        if name and not PIPELINE_NAME.fullmatch(name):
            self._problems.add(
                root.values["name"].place,
                f"the name {name!r} may have letters, digits, '.', '_' and '-', and begins with a letter or digit",
            )
        return Pipeline(
            file=str(self._file),
            name=name,
            servers=self._parsed(root, "servers", _servers) or "",
            checkpoint=self._path(self._text(root, "checkpoint") or ""),
            trigger=self._parsed(root, "trigger", parse_trigger) or Trigger(),
            master=master,
            conf=conf,
            sources=self._named(root, "sources", "a source", self._source),
            transforms=self._named(root, "transforms", "a transform", self._transform),
            expectations=self._expectations(root.values.get("expectations")),
            sinks=self._named(root, "sinks", "a sink", self._sink),
            places=root.keys,
            directory=str(self._directory),
        )

    # -- sections ------------------------------------------------------------------------------------------------------

    def _spark(self, node: Node | None) -> tuple[str, dict[str, str]]:
        conf: dict[str, str] = {}
        master = DEFAULT_MASTER
        if node is None or not (section := self._mapping(node, "spark", "{master: local[2,4]}")):
            return master, conf
        for key in section.values:
            if key == "master":
                master = self._parsed(section, key, parse_master) or master
            elif key.startswith("spark."):
                conf[key] = self._scalar(section, key) or ""
            else:
                fix = did_you_mean(key, ["master"], otherwise=f"write it as 'spark.{key}'")
                self._problems.add(section.keys[key], f"{key!r} is neither master nor a setting of Spark: {fix}")
        return master, conf

    def _source(self, name: str, section: Mapped) -> Source:
        own = ("on_decode_error", "dead_letter_topic", "watermark")
        read = [one for one in (*COMMON, *READING) if one not in (*ONLY_BATCHES, "onDecodeError", "descriptors")]
        for key, place in section.keys.items():
            if key in ONLY_BATCHES:
                self._problems.add(place, f"{key} is for batches: a pipeline reads streams, which do not end")
            elif (here := KAFKAS.get(key.lower())) is not None:
                self._problems.add(place, f"{key!r} is Kafka's: here it is {here!r}")
        elsewhere = {*ONLY_BATCHES, *(key for key in section.keys if key.lower() in KAFKAS)}
        self._known(section, (*read, *own), f"source {name}", (STORE_PREFIX,), elsewhere)
        errors = cast(DecodeErrors, self._choice(section, "on_decode_error", ("fail", "null", "dead-letter")) or "fail")
        options = self._options(section, own)
        if errors != "fail" and "decode" in options:
            options["onDecodeError"] = "null"
        topic = self._parsed(section, "dead_letter_topic", lambda text: str(TopicName.parse(text))) or ""
        self._check_decode_errors(name, section, errors, topic)
        watermark = self._watermark(section)
        self._check_options(section, f"source {name}", lambda: ReadOptions.parse(options, "stream"))
        return Source(name, section.place, options, section.keys, errors, topic, watermark)

    def _check_decode_errors(self, name: str, section: Mapped, errors: str, topic: str) -> None:
        if errors != "fail" and "decode" not in section.keys:
            self._problems.add(section.keys["on_decode_error"], f"source {name} decodes nothing: add 'decode: schema'")
        if errors == "dead-letter" and "dead_letter_topic" not in section.keys:
            at = section.keys["on_decode_error"]
            self._problems.add(at, f"source {name} needs 'dead_letter_topic', such as /default/{name}-dlq")
        if "dead_letter_topic" in section.keys and errors != "dead-letter":
            at = section.keys["dead_letter_topic"]
            self._problems.add(at, f"source {name} sends nothing to it: add 'on_decode_error: dead-letter'")
        if topic and topic in (section_topic := self._text(section, "topic") or "").split(","):
            at = section.keys["dead_letter_topic"]
            self._problems.add(at, f"{section_topic} cannot be its own dead letter topic: its letters would come back")

    def _transform(self, name: str, section: Mapped) -> Transform | None:
        self._known(section, ("sql", "function", "inputs", "watermark"), f"transform {name}")
        sql, function = self._source_text(section, "sql"), self._source_text(section, "function")
        if ("sql" in section.keys) == ("function" in section.keys):
            told = "both 'sql' and 'function'" if sql else "neither 'sql' nor 'function'"
            self._problems.add(section.place, f"transform {name} has {told}: it has exactly one of them")
            return None
        inputs: dict[str, Place] = {}
        if sql is not None and "inputs" in section.keys:
            self._problems.add(section.keys["inputs"], "SQL names its inputs itself: leave 'inputs' out")
        elif function is not None:
            inputs = self._inputs(name, section)
        return Transform(name, section.place, tuple(inputs), sql, function, inputs, self._watermark(section))

    def _inputs(self, name: str, section: Mapped) -> dict[str, Place]:
        if not self._required(section, "inputs", f"transform {name}"):
            return {}
        node = section.values["inputs"]
        items = node.items if isinstance(node, Sequence) else (node,)
        found: dict[str, Place] = {}
        for item in items:
            if not isinstance(item, Scalar) or item.kind != "str":
                self._problems.add(
                    item.place, f"an input is the name of a source or transform: this is {kind_of(item)}"
                )
            elif item.text in found:
                self._problems.add(item.place, f"the input {item.text!r} is there twice")
            else:
                found[item.text] = item.place
        if not items:
            self._problems.add(node.place, "'inputs' is empty: name the sources and transforms that the function takes")
        return found

    def _expectations(self, node: Node | None) -> dict[str, tuple[Expectation, ...]]:
        if node is None or not (section := self._mapping(node, "expectations", "{orders: [{name: ..., check: ...}]}")):
            return {}
        found: dict[str, tuple[Expectation, ...]] = {}
        for input_name, rules in section.values.items():
            if not isinstance(rules, Sequence):
                form = "[{name: positive, check: amount > 0, action: drop}]"
                self._problems.add(rules.place, f"the expectations of {input_name} are a list such as {form}")
                continue
            read = [self._expectation(input_name, rule) for rule in rules.items]
            kept: dict[str, Expectation] = {}
            for rule in read:
                if rule is not None and rule.name in kept:
                    self._problems.add(rule.place, f"{input_name} has two expectations named {rule.name!r}")
                elif rule is not None:
                    kept[rule.name] = rule
            found[input_name] = tuple(kept.values())
        return found

    def _expectation(self, input_name: str, node: Node) -> Expectation | None:
        what = f"an expectation of {input_name}"
        section = self._mapping(node, what, "{name: positive, check: amount > 0, action: drop}")
        if section is None:
            return None
        self._known(section, ("name", "check", "action", "topic"), what)
        if not self._needs(section, ("name", "check", "action"), what):
            return None
        name, check = self._text(section, "name") or "", self._source_text(section, "check")
        action = self._choice(section, "action", ("drop", "dead-letter", "fail"))
        topic = self._parsed(section, "topic", lambda text: str(TopicName.parse(text))) or ""
        if name and (not NAME.fullmatch(name) or name == UNDECODABLE):
            why = "is taken" if name == UNDECODABLE else "may have letters, digits and '_', and begins with a letter"
            self._problems.add(section.values["name"].place, f"the name {name!r} {why}")
        if action == "dead-letter" and "topic" not in section.keys:
            self._problems.add(section.place, f"{name} needs a 'topic' for dead letters, such as /default/orders-dlq")
        if action in ("drop", "fail") and "topic" in section.keys:
            self._problems.add(section.keys["topic"], f"'topic' is for the action dead-letter, and this is {action}")
        if check is None or action is None:
            return None
        return Expectation(name, section.place, check, cast(Action, action), topic)

    def _sink(self, name: str, section: Mapped) -> Sink | None:
        own = ("from", "format", "mode")
        if not self._needs(section, ("from", "format"), f"sink {name}"):
            return None
        form = self._text(section, "format") or ""
        mode = cast(OutputMode, self._choice(section, "mode", ("append", "update", "complete")) or "append")
        input_node = section.values["from"]
        options = self._options(section, own)
        if form in (*TABLES, "danube", "parquet") and mode != "append":
            told = f"{form} takes only 'mode: append', which writes the rows of a window when it is closed"
            self._problems.add(section.keys["mode"], told)
        self._check_sink(name, form, section, options)
        if "path" in options:
            options["path"] = self._path(options["path"])
        source = self._text(section, "from") or ""
        return Sink(name, section.place, source, input_node.place, form, mode, options, section.keys)

    def _check_sink(self, name: str, form: str, section: Mapped, options: dict[str, str]) -> None:
        own = ("from", "format", "mode")
        if form == "danube":
            self._check_options(section, f"sink {name}", lambda: WriteOptions.parse(options))
            for key in ("queryId", "batchId"):
                if key in section.keys:
                    self._problems.add(section.keys[key], f"{key} is for batches: a pipeline has its own")
        elif form in TABLES:
            self._known(section, (*own, *TABLE_OPTIONS), f"sink {name}", TABLE_PREFIXES)
            self._check_options(section, f"sink {name}", lambda: TableOptions.parse(cast(Format, form), options))
        elif form == "parquet":
            self._known(section, (*own, "path", "partitionBy", "compression"), f"sink {name}")
            self._required(section, "path", f"sink {name}")
        elif form and (near := nearest(form, BUILT_IN)) and form.lower() not in BUILT_IN:
            self._problems.add(section.values["format"].place, f"there is no format {form!r}: did you mean {near!r}?")

    def _watermark(self, section: Mapped) -> Watermark | None:
        form = "{column: at, delay: 10 seconds}"
        node = section.values.get("watermark")
        if node is None or not (mark := self._mapping(node, "a watermark", form)):
            return None
        self._known(mark, ("column", "delay"), "a watermark")
        if not self._needs(mark, ("column", "delay"), "a watermark"):
            return None
        column = self._text(mark, "column") or ""
        delay = self._parsed(mark, "delay", _delay)
        return Watermark(column, delay, mark.values["column"].place) if column and delay else None

    # -- values --------------------------------------------------------------------------------------------------------

    def _known(
        self,
        section: Mapped,
        known: Iterable[str],
        what: str,
        prefixes: tuple[str, ...] = (),
        reported: Container[str] = (),
    ) -> None:
        known = list(known)
        for key, place in section.keys.items():
            if key not in known and key not in reported and not (prefixes and key.startswith(prefixes)):
                self._problems.add(place, f"{what} has no key {key!r}: {did_you_mean(key, known)}")

    def _needs(self, section: Mapped, keys: tuple[str, ...], what: str) -> bool:
        """Report every key that is missing; return whether all are there."""
        found = [self._required(section, key, what) for key in keys]
        return all(found)

    def _required(self, section: Mapped, key: str, what: str) -> bool:
        if key not in section.keys:
            self._problems.add(section.place, f"{what} has no {key!r}, which it needs")
        return key in section.values

    def _mapping(self, node: Node, what: str, form: str) -> Mapped | None:
        if isinstance(node, Mapped):
            return node
        self._problems.add(node.place, f"{what} is a mapping such as {form}: this is {kind_of(node)}")
        return None

    def _named(self, root: Mapped, key: str, what: str, parse: Callable[[str, Mapped], T | None]) -> dict[str, T]:
        node = root.values.get(key)
        if node is None or not (
            section := self._mapping(node, f"{key!r}", f"{{name: {{...}}}} with {what} for each name")
        ):
            return {}
        if not section.keys and key != "transforms":
            self._problems.add(section.place, f"{key!r} is empty: a pipeline has at least one")
        found: dict[str, T] = {}
        for name, value in section.values.items():
            if not NAME.fullmatch(name):
                told = f"the name {name!r} of {what} may have letters, digits and '_', and begins with a letter or '_'"
                self._problems.add(section.keys[name], told)
            inner = self._mapping(value, what, "{...} with its keys")
            parsed = parse(name, inner) if inner is not None else None
            if parsed is not None:
                found[name] = parsed
        return found

    def _text(self, section: Mapped, key: str) -> str | None:
        """Return a value that must be text; None if it is not there or is something else, which is reported."""
        node = section.values.get(key)
        if node is None:
            return None
        if not isinstance(node, Scalar):
            self._problems.add(node.place, f"{key!r} is text: this is {kind_of(node)}")
            return None
        if node.kind != "str":
            if node.kind == "null" and not node.text:
                self._problems.add(section.keys[key], f"{key!r} is empty: give it a value")
            else:
                kind = {"int": "a number", "float": "a number", "bool": "true or false", "null": "nothing"}.get(
                    node.kind
                )
                told = f"YAML reads {node.text} as {kind or f'a {node.kind}'}: write it in quotes"
                self._problems.add(node.place, f"{key!r} is text, and {told}")
            return None
        if not node.text.strip():
            self._problems.add(node.place, f"{key!r} is empty: give it a value")
            return None
        return node.text

    def _source_text(self, section: Mapped, key: str) -> TextInFile | None:
        return cast(Scalar, section.values[key]).source if self._text(section, key) is not None else None

    def _scalar(self, section: Mapped, key: str) -> str | None:
        """Return a value of any kind as text; a list becomes comma separated text."""
        node = section.values[key]
        if isinstance(node, Sequence) and all(isinstance(one, Scalar) for one in node.items):
            return ",".join(cast(Scalar, one).value for one in node.items)
        if not isinstance(node, Scalar):
            self._problems.add(node.place, f"{key!r} is a single value: this is {kind_of(node)}")
            return None
        if node.kind == "null" and not node.text:
            self._problems.add(section.keys[key], f"{key!r} is empty: give it a value, or leave it out")
            return None
        return node.value

    def _parsed(self, section: Mapped, key: str, parse: Callable[[str], T]) -> T | None:
        node = section.values.get(key)
        number = isinstance(node, Scalar) and node.kind in ("int", "float")
        text = cast(Scalar, node).text if number else self._text(section, key)
        if text is None:
            return None
        try:
            return parse(text)
        except Invalid as error:
            self._problems.add(section.values[key].place, error.message)
            return None

    def _choice(self, section: Mapped, key: str, choices: tuple[str, ...]) -> str | None:
        node = section.values.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.text.lower() in choices:
            return node.text.lower()
        self._problems.add(
            node.place, f"{key!r} is {', '.join(choices[:-1])} or {choices[-1]}: this is {kind_of(node)}"
        )
        return None

    def _options(self, section: Mapped, without: tuple[str, ...]) -> dict[str, str]:
        """Return the options of a data source: every key that is not one of our own, as text."""
        found = {key: self._scalar(section, key) for key in section.values if key not in without}
        return {key: value for key, value in found.items() if value is not None}

    def _check_options(self, section: Mapped, what: str, parse: Callable[[], object]) -> None:
        """Let the data source parse its options; a problem is reported at the option that its message names."""
        try:
            parse()
        except Invalid as error:
            named = [key for key in section.keys if re.search(rf"\b{re.escape(key)}\b", error.message, re.IGNORECASE)]
            place = section.values[named[0]].place if named and named[0] in section.values else section.place
            if not any(
                problem.place in (place, section.keys.get(named[0]) if named else None)
                for problem in self._problems.found
            ):
                self._problems.add(place, f"{what}: {error.message}")

    def _path(self, text: str) -> str:
        """Return a path relative to the file's directory as an absolute one; URLs stay as they are."""
        if not text or "://" in text or text.startswith("file:"):
            return text
        return str(self._directory / Path(text).expanduser())


def _servers(text: str) -> str:
    parse_servers(text)
    return text


def _delay(text: str) -> str:
    """Return the duration as Spark writes it."""
    return f"{int(read(Duration(needs_unit=True), text, 'the delay') * 1000)} milliseconds"


def parse_trigger(text: str) -> Trigger:
    """Parse `continuous`, `available-now`, or an interval such as ``10s``."""
    if text in ("continuous", "available-now"):
        return Trigger("continuous" if text == "continuous" else "available-now")
    try:
        return Trigger("interval", INTERVAL.read(text.removeprefix("every ")))
    except ValueError:
        message = f"the trigger {text!r} is unknown: use continuous, available-now, or an interval such as 10s"
        raise Invalid(message) from None


def parse_master(text: str) -> str:
    """Check the form of a Spark master."""
    if not any(form.fullmatch(text) for form in _MASTERS):
        raise Invalid(f"the master {text!r} is none that Spark knows: {_MASTER_FORM}")
    return text
