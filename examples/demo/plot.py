"""Plots the totals that the pipeline computed, what it set aside, and the effect of the kill on its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.dates
import matplotlib.pyplot as plt
from audit import WINDOW_SECONDS
from feed import ITEMS
from matplotlib.axes import Axes
from story import Steps, Story
from summary import REASONS

COLOURS = ["#3b2314", "#b5651d", "#e0a458", "#7a9e9f"]
ALARM = "#c0392b"


def draw(story: Story, file: Path) -> None:
    figure, (revenue, letters, done) = plt.subplots(3, 1, figsize=(10, 9), sharex=True, height_ratios=[3, 2, 2])
    _revenue(revenue, story)
    _letters(letters, story)
    _done(done, story.published, story.watch.steps)
    killed, back = map(_time, story.killed)
    for axes in (revenue, letters, done):
        axes.axvspan(killed, back, color=ALARM, alpha=0.15, lw=0, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    done.text(killed, done.get_ylim()[1], " kill -9: the pipeline is away", color=ALARM, va="top")
    done.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    last = max(steps[-1][0] for steps in story.watch.steps.values())
    done.set_xlim(_time(story.published[0][0] - WINDOW_SECONDS), _time(last + WINDOW_SECONDS))
    figure.suptitle("Orders in windows of event time: exactly once, kill -9 included", weight="bold")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _time(seconds: float) -> Any:
    return datetime.fromtimestamp(seconds, UTC)


def _revenue(axes: Axes, story: Story) -> None:
    assert story.results is not None
    heights = {(total.start, total.item): total.cents / 100 for total in story.results.totals}
    _stacked_bars(axes, heights, {item: item for item in ITEMS})
    axes.set_ylabel(f"revenue in {WINDOW_SECONDS} s")


def _letters(axes: Axes, story: Story) -> None:
    assert story.results is not None
    counts: Counter[tuple[int, str]] = Counter()
    for when, (_, letter) in zip(story.results.letter_times, story.results.letters, strict=True):
        counts[int(when.timestamp()) // WINDOW_SECONDS * WINDOW_SECONDS, letter.wrong] += 1
    _stacked_bars(axes, counts, REASONS)
    axes.set_ylabel(f"dead letters in {WINDOW_SECONDS} s")


def _stacked_bars(axes: Axes, heights: Mapping[tuple[int, str], float], labels: dict[str, str]) -> None:
    """Draw a bar for each window; its parts are those of `labels`, by name."""
    starts = sorted({start for start, _ in heights})
    bottom = [0.0] * len(starts)
    for (name, label), colour in zip(labels.items(), COLOURS, strict=False):
        parts = [heights.get((start, name), 0) for start in starts]
        times, width = [_time(start) for start in starts], WINDOW_SECONDS * 0.85 / 86_400
        axes.bar(times, parts, width, bottom, align="edge", color=colour, label=label, zorder=2)
        bottom = [low + part for low, part in zip(bottom, parts, strict=True)]
    axes.legend(ncols=len(labels), frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.98))


def _done(axes: Axes, published: Steps, steps: dict[str, Steps]) -> None:
    axes.plot([_time(when) for when, _ in published], [count for _, count in published], color="grey", label="sent")
    for (query, some), colour in zip(steps.items(), COLOURS, strict=False):
        times, counts = [_time(when) for when, _ in some], [count for _, count in some]
        axes.step(times, counts, where="post", color=colour, label=query)
    axes.set_ylabel("orders processed")
    axes.legend(ncols=len(steps) + 1, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.98))
