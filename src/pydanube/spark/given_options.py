"""The options of one data frame as Spark passes them: text, with the names in lower case.

Error messages use the documented spelling. Unknown options are refused by name: a misspelt option that is ignored could
start a stream at the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pydanube.model.errors import Invalid
from pydanube.model.staging import BATCH_ID_MAX, check_query
from pydanube.model.text import Kind, Number, read

T = TypeVar("T")


class GivenOptions:
    def __init__(
        self,
        options: Mapping[str, str],
        known: Iterable[str],
        prefixes: Iterable[str],
        unknown: Callable[[str], str],
    ) -> None:
        """Options that begin with one of the `prefixes` may have any name. `unknown` returns what is told about an
        option that there is not."""
        spelling = {name.lower(): name for name in known}
        self.values: dict[str, str] = {}
        self._prefixed: dict[str, dict[str, str]] = {prefix: {} for prefix in prefixes}
        for name, value in options.items():
            lower = name.lower()
            prefix = next((one for one in self._prefixed if lower.startswith(one)), None)
            if prefix is not None:
                self._prefixed[prefix][lower.removeprefix(prefix)] = value
            elif lower in spelling:
                self.values[spelling[lower]] = value
            else:
                raise Invalid(unknown(name))

    def prefixed(self, prefix: str) -> tuple[tuple[str, str], ...]:
        """Return the options with this prefix, without it."""
        return tuple(sorted(self._prefixed.get(prefix, {}).items()))

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except Invalid as error:
            raise Invalid(f"option {name}: {error.message}") from None

    def read(self, name: str, kind: Kind[T], default: T) -> T:
        text = self.values.get(name)
        return default if text is None else read(kind, text, f"option {name}")

    def batch(self) -> tuple[str, int]:
        """Return the query and the id of a batch that may be written repeatedly and counts once; "" and -1: it has no
        such identity."""
        query = self.text("queryId")
        if (query is None) != (self.text("batchId") is None):
            raise Invalid("options queryId and batchId belong together: give both, or neither")
        if query is None:
            return "", -1
        return check_query("option queryId:", query), self.read("batchId", Number(0, BATCH_ID_MAX), -1)
