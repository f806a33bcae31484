"""Plots the sums that Spark computed, and the effect of the kill on its progress."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.dates
import matplotlib.pyplot as plt
from audit import Place, Total
from feed import ITEMS, ORDERS, ROASTERS
from job import WINDOW_SECONDS
from matplotlib.axes import Axes
from story import Steps, Story

COLOURS = ["#3b2314", "#b5651d", "#e0a458", "#7a9e9f"]
ALARM = "#c0392b"


def draw(story: Story, windows: dict[Place, Total], file: Path) -> None:
    figure, (revenue, heat, done) = plt.subplots(3, 1, figsize=(10, 9), sharex=True, height_ratios=[3, 2, 2])
    _revenue(revenue, windows)
    _heat(heat, windows)
    _done(done, story.published, story.watch.steps)
    killed, back = map(_time, story.killed)
    for axes in (revenue, heat, done):
        axes.axvspan(killed, back, color=ALARM, alpha=0.15, lw=0, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    done.text(killed, done.get_ylim()[1], " kill -9: Spark is away", color=ALARM, va="top")
    done.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    done.set_xlim(_time(story.published[0][0] - WINDOW_SECONDS), _time(story.watch.steps[-1][0] + WINDOW_SECONDS))
    figure.suptitle("Orders and roasters in windows of event time: exactly once, kill -9 included", weight="bold")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _time(seconds: float) -> Any:
    return datetime.fromtimestamp(seconds, UTC)


def _revenue(axes: Axes, windows: dict[Place, Total]) -> None:
    starts = sorted({start for start, topic, _ in windows if topic == ORDERS})
    times = [_time(start) for start in starts]
    width = WINDOW_SECONDS * 0.85 / 86_400
    bottom = [0.0] * len(starts)
    for item, colour in zip(ITEMS, COLOURS, strict=True):
        places = [(start, ORDERS, item) for start in starts]
        heights = [windows[place].cents / 100 if place in windows else 0.0 for place in places]
        axes.bar(times, heights, width, bottom, align="edge", color=colour, label=item, zorder=2)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_ylabel(f"revenue in {WINDOW_SECONDS} s")
    axes.legend(ncols=len(ITEMS), frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.14))


def _heat(axes: Axes, windows: dict[Place, Total]) -> None:
    for site, colour in zip(ROASTERS, COLOURS, strict=False):
        of_site = sorted((start, total) for (start, _, what), total in windows.items() if what == site)
        times = [_time(start + WINDOW_SECONDS / 2) for start, _ in of_site]
        means = [total.millidegrees / total.messages / 1000 for _, total in of_site]
        axes.plot(times, means, marker=".", color=colour, label=site)
    axes.set_ylabel("roasters, mean °C")
    axes.legend(ncols=len(ROASTERS), frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.2))


def _done(axes: Axes, published: Steps, done: Steps) -> None:
    axes.plot([_time(when) for when, _ in published], [count for _, count in published], color=COLOURS[2], label="sent")
    axes.step(
        [_time(when) for when, _ in done], [count for _, count in done], where="post", color=COLOURS[0], label="done"
    )
    axes.set_ylabel("messages")
    axes.legend(frameon=False, loc="lower right")
