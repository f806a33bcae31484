"""One picture: what Spark added up, and how the kill looked from outside."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.dates
import matplotlib.pyplot as plt
from audit import Place, Total
from feed import ITEMS, ORDERS, ROASTERS
from job import WINDOW_SECONDS
from matplotlib.axes import Axes

COLOURS = ["#3b2314", "#b5651d", "#e0a458", "#7a9e9f"]


def draw(
    windows: dict[Place, Total], steps: Iterable[tuple[float, int]], killed: tuple[float, float], file: Path
) -> None:
    """`steps`: when Spark had done how many messages; `killed`: from when to when it was away."""
    figure, (revenue, heat, done) = plt.subplots(3, 1, figsize=(10, 9), sharex=True, height_ratios=[3, 2, 2])
    _revenue(revenue, windows)
    _heat(heat, windows)
    _done(done, list(steps))
    for axes in (revenue, heat, done):
        axes.axvspan(_time(killed[0]), _time(killed[1]), color="#c0392b", alpha=0.12, lw=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    revenue.text(_time(killed[0]), revenue.get_ylim()[1], " kill -9: Spark was away", color="#c0392b", va="top")
    done.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    figure.suptitle("Orders and roasters, windowed by Spark: exactly once, kill -9 included", weight="bold")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _revenue(axes: Axes, windows: dict[Place, Total]) -> None:
    starts = sorted({start for start, topic, _ in windows if topic == ORDERS})
    times = [_time(start) for start in starts]
    width = WINDOW_SECONDS * 0.85 / 86_400
    bottom = [0.0] * len(starts)
    for item, colour in zip(ITEMS, COLOURS, strict=True):
        places = [(start, ORDERS, item) for start in starts]
        heights = [windows[place].cents / 100 if place in windows else 0.0 for place in places]
        axes.bar(times, heights, width, bottom, align="edge", color=colour, label=item)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_ylabel(f"revenue per {WINDOW_SECONDS} s")
    axes.legend(ncols=len(ITEMS), frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.14))


def _heat(axes: Axes, windows: dict[Place, Total]) -> None:
    for site, colour in zip(ROASTERS, COLOURS, strict=False):
        of_site = sorted((start, total) for (start, _, what), total in windows.items() if what == site)
        times = [_time(start + WINDOW_SECONDS / 2) for start, _ in of_site]
        means = [total.millidegrees / total.messages / 1000 for _, total in of_site]
        axes.plot(times, means, marker=".", color=colour, label=site)
    axes.set_ylabel("roasters, mean °C")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _done(axes: Axes, steps: list[tuple[float, int]]) -> None:
    axes.step([_time(when) for when, _ in steps], [count for _, count in steps], where="post", color="#3b2314")
    axes.set_ylabel("messages through Spark")
