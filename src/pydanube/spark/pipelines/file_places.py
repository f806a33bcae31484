"""Where something stands in a pipeline file, and what is wrong there.

A problem is reported as ``orders.yaml:12:5: what is wrong: how to write it``. Lines and columns count from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a file."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something in a pipeline file that must be changed before the pipeline can run."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class TextInFile:
    """A text of the file that may have several lines, such as SQL, and where its characters stand."""

    text: str
    place: Place
    """Of the first character."""
    indent: int | None = 0
    """The columns before each line after the first; None: the lines of the text are not those of the file."""

    def place_of(self, line: int, column: int) -> Place:
        """Return the place in the file of a line and column of the text, both counted from 1."""
        if self.indent is None:
            return self.place
        before = self.place.column - 1 if line == 1 else self.indent
        return Place(self.place.file, self.place.line + line - 1, before + column)


@dataclass(slots=True)
class Problems:
    """Collects the problems of a file, so that all of them are reported at once."""

    found: list[Problem] = field(default_factory=list)

    def add(self, place: Place, message: str) -> None:
        problem = Problem(place, message)
        if problem not in self.found:
            self.found.append(problem)

    def __bool__(self) -> bool:
        return bool(self.found)
