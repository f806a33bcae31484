"""Records real commands in terminals and writes them as an animated SVG: the moving picture of the README.

    python docs/pictures/record.py          (writes docs/pictures/kill.svg; the ports of a broker must be free)

Three shells on pseudo-terminals run a broker, a producer and `danube top`. The script types into them and waits for
what they print; nothing is shown that they did not print. Pauses longer than IDLE_SECONDS_MAX are cut. The SVG is
animated by CSS alone, so that it moves where scripts are not allowed; without animation it shows the last moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import html
import os
import pty
import re
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = 100
IDLE_SECONDS_MAX = 0.7
VERDICT = "all there, once, in order"
LAST_SECONDS = 6.0
STEP_SECONDS = 0.1
"""Changes within this time are one picture."""
WAIT_SECONDS_MAX = 120.0

CELL = (8.4, 18)
MARGIN = 14
PROMPT = "$ "
GREY, GREEN, RED, WHITE = "#8b949e", "#7ee787", "#ff7b72", "#e6edf3"
COLOURS = dict(enumerate([GREY, RED, GREEN, "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", WHITE]))
CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()].|\x1b[=>]")

Style = tuple[str, bool]
"""Colour, and whether it is bold."""
PLAIN: Style = (WHITE, False)
Cell = tuple[str, Style]
Line = tuple[tuple[int, str, Style], ...]
"""A line as runs of one style: the column, the text, the style."""


class Screen:
    """A terminal of a few rows, as far as the recorded commands need one."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._row = self._column = 0
        self._style = PLAIN
        self._cells = [self._blank() for _ in range(rows)]
        self._rest = ""

    def _blank(self) -> list[Cell]:
        return [(" ", PLAIN)] * COLUMNS

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = CONTROL.match(text, at)
                if found is None:
                    self._rest = text[at:]  # it is not complete yet
                    return
                if found[2]:
                    self._control(found[2], found[1])
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    def _put(self, character: str) -> None:
        match character:
            case "\r":
                self._column = 0
            case "\n":
                self._row += 1
                if self._row == self.rows:
                    self._row -= 1
                    self._cells = [*self._cells[1:], self._blank()]
            case "\b":
                self._column = max(0, self._column - 1)
            case _ if character >= " ":
                if self._column == COLUMNS:
                    self._put("\r")
                    self._put("\n")
                self._cells[self._row][self._column] = (character, self._style)
                self._column += 1

    def _control(self, kind: str, text: str) -> None:
        numbers = [int(one) for one in text.split(";") if one.isdigit()]
        count = numbers[0] if numbers else 1
        match kind:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self.rows - 1, self._row + count)
            case "C":
                self._column = min(COLUMNS, self._column + count)
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = count - 1
            case "H":
                self._row = min(self.rows, count) - 1
                self._column = (numbers[1] if len(numbers) > 1 else 1) - 1
            case "K":
                begin = 0 if count == 2 and numbers else self._column
                self._cells[self._row][begin:] = self._blank()[begin:]
            case "J":
                whole = bool(numbers) and count >= 2
                first = 0 if whole else self._row
                if not whole:
                    self._cells[self._row][self._column :] = self._blank()[self._column :]
                for row in range(first if whole else first + 1, self.rows):
                    self._cells[row] = self._blank()
            case "m":
                self._restyle(numbers or [0])
            case "h" | "l" if text == "?1049":
                self._cells = [self._blank() for _ in range(self.rows)]
                self._row = self._column = 0
            case _:
                pass

    def _restyle(self, numbers: list[int]) -> None:
        colour, bold = self._style
        for number in numbers:
            if number == 0:
                colour, bold = PLAIN
            elif number == 1:
                bold = True
            elif number == 2:
                colour = GREY
            elif number == 22:
                colour, bold = WHITE, False
            elif 30 <= number <= 37 or 90 <= number <= 97:
                colour = COLOURS[number % 10]
            elif number == 39:
                colour = WHITE
        self._style = colour, bold

    def lines(self) -> list[Line]:
        return [tuple(_runs(cells)) for cells in self._cells]


def _runs(cells: list[Cell]) -> Iterator[tuple[int, str, Style]]:
    """Yield the text of a line in runs of one style, without the spaces around them."""
    begin = 0
    for end in range(1, COLUMNS + 1):
        if end == COLUMNS or cells[end][1] != cells[begin][1]:
            text = "".join(character for character, _ in cells[begin:end])
            if text.strip():
                yield begin + len(text) - len(text.lstrip()), text.strip(), cells[begin][1]
            begin = end


class Terminal:
    """A shell on a pseudo-terminal, and what it has printed."""

    def __init__(self, title: str, rows: int, directory: Path, environment: dict[str, str]) -> None:
        self.title = title
        self.screen = Screen(rows)
        self.printed = ""
        self.news = asyncio.Event()
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        os.set_inheritable(self._file, False)  # else the shells after this one keep it from being hung up
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def _read(self) -> None:
        try:
            text = os.read(self._file, 65536).decode(errors="replace")
        except OSError:
            text = ""
        if not text:
            asyncio.get_running_loop().remove_reader(self._file)
        self.printed += text
        self.screen.feed(text)
        self.news.set()

    async def type(self, text: str, pause: float = 0.015) -> None:
        self.printed = ""
        for character in text:
            os.write(self._file, character.encode())
            await asyncio.sleep(pause)
        await asyncio.sleep(0.3)
        os.write(self._file, b"\n")

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.printed).replace("\r", "")

    async def wait_for(self, wanted: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while wanted not in self.text:
                self.news.clear()
                await self.news.wait()

    async def run(self, command: str) -> None:
        """Type a command and wait until the shell asks for the next."""
        await self.type(command)
        await self.wait_for(f"\n{PROMPT}")

    def close(self) -> None:
        """Hang up: the shell ends, and hands the signal to all that it has started."""
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        os.waitpid(self._pid, 0)


@dataclass
class Recording:
    """The lines of all terminals at every moment at which something changed."""

    terminals: list[Terminal]
    moments: list[tuple[float, list[Line]]] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            lines = [line for terminal in self.terminals for line in terminal.screen.lines()]
            if not self.moments or lines != self.moments[-1][1]:
                self.moments.append((time.monotonic(), lines))
            await asyncio.sleep(STEP_SECONDS)

    def pictures(self) -> tuple[list[tuple[float, list[Line]]], float]:
        """Return the moments by their time in the film, and how long it is."""
        film, now, before = [], 0.0, self.moments[0][0]
        for when, lines in self.moments:
            now += min(when - before, IDLE_SECONDS_MAX)
            before = when
            film.append((now, lines))
        return film, now + LAST_SECONDS


async def story(directory: Path, environment: dict[str, str]) -> Recording:
    broker = Terminal("broker", 5, directory, environment)
    clients = Terminal("a producer and a consumer", 8, directory, environment)
    top = Terminal("danube top", 5, directory, environment)
    await asyncio.gather(*(one.wait_for(PROMPT) for one in (broker, clients, top)))
    recording = Recording([broker, clients, top])
    recorder = asyncio.create_task(recording.run())
    try:
        await broker.type("danube serve 2> broker.log &")
        await broker.wait_for("danube ready")
        await broker.run("")
        await clients.run("danube topics create /default/orders")
        await top.type("danube top -i 1")
        await clients.run("danube consume /default/orders -s billing > received.txt 2> consumer.log &")
        await clients.run("seq 1 500000 > numbers.txt")
        await clients.type("danube produce /default/orders --rate 50000 < numbers.txt")
        await clients.wait_for("published")
        await asyncio.sleep(3)
        await broker.run("kill -9 %1")
        await asyncio.sleep(1)
        await broker.type("danube serve 2>> broker.log &")
        await broker.wait_for("danube ready")
        await clients.wait_for("published 500,000 messages")
        await clients.wait_for(f"\n{PROMPT}")
        await clients.run(f"danube consume /default/orders -e | cmp - numbers.txt && echo {VERDICT!r}")
        assert f"\n{VERDICT}" in clients.text, clients.text
        await asyncio.sleep(2 * STEP_SECONDS)
    finally:
        recorder.cancel()
        for one in recording.terminals:
            one.close()
    return recording


# -- as SVG ------------------------------------------------------------------------------------------------------------


def svg(recording: Recording) -> str:
    film, seconds = recording.pictures()
    tops, height = [], float(MARGIN)
    titles = []
    for terminal in recording.terminals:
        titles.append((height + 13, terminal.title))
        height += 26
        tops += [height + row * CELL[1] for row in range(terminal.screen.rows)]
        height += terminal.screen.rows * CELL[1] + MARGIN
    width = COLUMNS * CELL[0] + 2 * MARGIN
    shown, rules = [], []
    for number, top in enumerate(tops):
        for line, times in _appearances(film, number, seconds):
            if not line:
                continue
            name = f"a{len(rules)}"
            rules.append(_rule(name, times, seconds))
            hidden = "" if times[-1][1] >= seconds else ' visibility="hidden"'
            texts = "".join(_text(column, text, style, top) for column, text, style in line)
            shown.append(f'<g class="{name}"{hidden}>{texts}</g>')
    bars = "".join(
        f'<line x1="0" x2="{width:.0f}" y1="{y + 8:.0f}" y2="{y + 8:.0f}" stroke="#30363d"/>'
        f'<text x="{MARGIN}" y="{y:.0f}" fill="{GREY}" font-size="12">{title}</text>'
        for y, title in titles
    )
    style = (
        f"text{{white-space:pre}}g{{animation-duration:{seconds:.1f}s;animation-timing-function:step-end;"
        "animation-iteration-count:infinite}@media(prefers-reduced-motion:reduce){g{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14">'
        f"<title>A broker is killed while half a million messages are published; all are there, once, in order</title>"
        f"<style>{style}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{bars}{"".join(shown)}</svg>\n'
    )


def _appearances(
    film: list[tuple[float, list[Line]]], number: int, seconds: float
) -> list[tuple[Line, list[tuple[float, float]]]]:
    """Return what a line of the picture shows, each text with the times from and to which it is seen."""
    found: dict[Line, list[tuple[float, float]]] = {}
    ends = [*(when for when, _ in film[1:]), seconds]
    for (begin, lines), end in zip(film, ends, strict=True):
        times = found.setdefault(lines[number], [])
        if times and times[-1][1] == begin:
            times[-1] = times[-1][0], end
        else:
            times.append((begin, end))
    return list(found.items())


def _rule(name: str, times: list[tuple[float, float]], seconds: float) -> str:
    steps = {0.0: "hidden"}
    for begin, end in times:
        steps[begin / seconds * 100] = "visible"
        if end < seconds:
            steps[end / seconds * 100] = "hidden"
    frames = "".join(f"{percent:.4g}%{{visibility:{how}}}" for percent, how in sorted(steps.items()))
    return f"@keyframes {name}{{{frames}}}.{name}{{animation-name:{name}}}"


def _text(column: int, text: str, style: Style, top: float) -> str:
    colour, bold = style
    look = f'fill="{colour}"' + (' font-weight="bold"' if bold else "")
    place = f'x="{MARGIN + column * CELL[0]:.1f}" y="{top + 13:.0f}" textLength="{len(text) * CELL[0]:.1f}"'
    return f"<text {place} {look}>{html.escape(text, quote=False)}</text>"


async def record() -> Recording:
    with tempfile.TemporaryDirectory(prefix="danube-record-", ignore_cleanup_errors=True) as name:
        ours = {key: value for key, value in os.environ.items() if not key.startswith("DANUBE_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shell = {"PATH": path, "PS1": PROMPT, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"}
        return await story(Path(name), {**ours, **shell})


def main(file: Path) -> None:
    recording = asyncio.run(record())
    file.write_text(svg(recording), "utf-8")
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB, {recording.pictures()[1]:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "kill.svg")
