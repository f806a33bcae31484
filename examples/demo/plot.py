"""Draws the progress of the pipeline through the kill, the totals that it computed, and what it set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from audit import WINDOW_SECONDS
from feed import ITEMS
from matplotlib.axes import Axes
from story import Story
from summary import REASONS

COLOURS = ["#3b2314", "#b5651d", "#e0a458", "#7a9e9f"]
ALARM = "#c0392b"
SENT = "#d9d4cf"
QUERIES = {"table": "in the Delta table", "totals": "in the totals", "dead-letters.orders": "checked for dead letters"}


def draw(story: Story, file: Path) -> None:
    plt.rcParams["font.size"] = 11
    figure, (done, revenue, letters) = plt.subplots(3, 1, figsize=(10, 7), sharex=True, height_ratios=[3, 2.2, 1.3])
    begin = story.published[0][0]
    _done(done, story, begin)
    _revenue(revenue, story, begin)
    _letters(letters, story, begin)
    killed, back = (when - begin for when in story.killed)
    for axes in (done, revenue, letters):
        axes.axvspan(killed, back, color=ALARM, alpha=0.12, lw=0, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    letters.set_xlabel("seconds since the first order (bars: when the order was made)")
    last = max(steps[-1][0] for steps in story.watch.steps.values())
    letters.set_xlim(-WINDOW_SECONDS, last - begin + WINDOW_SECONDS)
    outcome = "nothing lost, nothing twice" if story.good else "NOT exactly once"
    title = f"{len(story.feed.books.sent):,} orders, the pipeline killed in the middle: {outcome}"
    figure.suptitle(title, weight="bold", fontsize=14)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def _done(axes: Axes, story: Story, begin: float) -> None:
    times, counts = [when - begin for when, _ in story.published], [count for _, count in story.published]
    axes.fill_between(times, counts, color=SENT, lw=0, label="sent", zorder=1)
    widths = (4.5, 3.0, 1.5)  # the lines often lie on each other
    for (query, steps), colour, width in zip(story.watch.steps.items(), COLOURS, widths, strict=False):
        shown = [(when - begin, count) for when, count in steps]
        axes.step(*zip(*shown, strict=True), where="post", color=colour, lw=width, label=QUERIES.get(query, query))
    killed, back = (when - begin for when in story.killed)
    axes.set_ylim(0, len(story.feed.books.sent) * 1.12)
    top = axes.get_ylim()[1]
    axes.text(killed, top, " kill -9", color=ALARM, va="top", weight="bold", fontsize=13)
    axes.text(back, top, f"back after {story.away:.0f} s ", color=ALARM, va="top", ha="right")
    axes.set_ylabel("orders")
    _legend(axes)


def _revenue(axes: Axes, story: Story, begin: float) -> None:
    assert story.results is not None
    heights = {(total.start - begin, total.item): total.cents / 100 for total in story.results.totals}
    _stacked_bars(axes, heights, {item: item for item in ITEMS})
    axes.set_ylabel(f"revenue in {WINDOW_SECONDS} s")


def _letters(axes: Axes, story: Story, begin: float) -> None:
    assert story.results is not None
    counts: Counter[tuple[float, str]] = Counter()
    for when, (_, letter) in zip(story.results.letter_times, story.results.letters, strict=True):
        counts[int(when.timestamp()) // WINDOW_SECONDS * WINDOW_SECONDS - begin, letter.wrong] += 1
    _stacked_bars(axes, counts, REASONS)
    axes.set_ylabel("dead letters")


def _stacked_bars(axes: Axes, heights: Mapping[tuple[float, str], float], labels: dict[str, str]) -> None:
    """Draw a bar for each window; its parts are those of `labels`, by name."""
    starts = sorted({start for start, _ in heights})
    bottom = [0.0] * len(starts)
    for (name, label), colour in zip(labels.items(), COLOURS, strict=False):
        parts = [heights.get((start, name), 0) for start in starts]
        axes.bar(starts, parts, WINDOW_SECONDS * 0.85, bottom, align="edge", color=colour, label=label, zorder=2)
        bottom = [low + part for low, part in zip(bottom, parts, strict=True)]
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.97), fontsize=10)
