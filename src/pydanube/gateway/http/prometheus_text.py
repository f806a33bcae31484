"""The two text formats of Prometheus: its own, version 0.0.4, and OpenMetrics 1.0.0.

They differ in the name of a counter's family (OpenMetrics leaves `_total` out there, not in the samples) and in the
last line of OpenMetrics, `# EOF`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from pydanube.model.metrics import HistogramValue, MetricFamily, MetricKind, Sample

END_OF_OPENMETRICS: Final = "# EOF\n"

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class TextFormat(Enum):
    """The formats; the value is the media type of the answer."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def choose_format(accept: str) -> TextFormat:
    """Return the format that the header Accept prefers: OpenMetrics only if it is named there."""
    openmetrics, plain = 0.0, 0.0
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        if media_type == "application/openmetrics-text" and _is_version_1(parameters):
            openmetrics = max(openmetrics, _quality(parameters))
        elif media_type == "text/plain":
            plain = max(plain, _quality(parameters))
    return TextFormat.OPENMETRICS if openmetrics > 0 and openmetrics >= plain else TextFormat.PROMETHEUS


def _is_version_1(parameters: list[str]) -> bool:
    versions = [one.removeprefix("version=") for one in parameters if one.startswith("version=")]
    return not versions or versions == ["1.0.0"]


def _quality(parameters: list[str]) -> float:
    for one in parameters:
        if one.startswith("q="):
            try:
                return float(one.removeprefix("q="))
            except ValueError:
                return 0.0
    return 1.0


def family_head(name: str, kind: MetricKind, about: str, text_format: TextFormat) -> str:
    """Return the lines HELP and TYPE, which come before the samples of a family."""
    if text_format is TextFormat.OPENMETRICS and kind is MetricKind.COUNTER:
        name = name.removesuffix("_total")
    return f"# HELP {name} {about.translate(_ESCAPED_HELP)}\n# TYPE {name} {kind}\n"


def format_family(family: MetricFamily, text_format: TextFormat) -> str:
    """Return all lines of a family; nothing if it has no samples."""
    if not family.samples:
        return ""
    lines = [family_head(family.name, family.kind, family.help, text_format)]
    for sample in family.samples:
        lines += _sample_lines(family.name, sample)
    return "".join(lines)


def _sample_lines(name: str, sample: Sample) -> list[str]:
    value = sample.value
    if not isinstance(value, HistogramValue):
        return [f"{name}{format_labels(sample.labels)} {format_value(value)}\n"]
    lines = []
    for bound, count in value.buckets:
        labels = format_labels({**sample.labels, "le": "+Inf" if bound == float("inf") else repr(float(bound))})
        lines.append(f"{name}_bucket{labels} {count}\n")
    labels = format_labels(sample.labels)
    return [
        *lines,
        f"{name}_sum{labels} {format_value(value.total)}\n",
        f"{name}_count{labels} {value.buckets[-1][1]}\n",
    ]


def format_labels(labels: Mapping[str, str]) -> str:
    """Return the labels in braces; nothing if there are none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()) + "}"


def format_value(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))
