"""The table of wrong pipeline files in `pipeline_errors.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydanube.spark.pipelines.loading import check_file

TABLE = Path(__file__).with_name("pipeline_errors.txt")
FUNCTIONS = """
ANSWER = 42


def same(orders):
    return orders


def joined(orders, customers):
    return orders.join(customers, "key")
"""


class Case(NamedTuple):
    name: str
    text: str
    expected: list[str]


def cases() -> list[Case]:
    found = []
    for part in TABLE.read_text().split("\n=== ")[1:]:
        name, _, rest = part.partition("\n")
        text, _, said = rest.rpartition("---\n")
        found.append(Case(name, text, said.split("\n")[:-1] if said.endswith("\n") else said.split("\n")))
    return found


def problems_of(text: str, directory: Path) -> list[str]:
    """Return what is said about a file with this text, without the file's path."""
    (directory / "pipeline_functions.py").write_text(FUNCTIONS)
    (directory / "broken_module.py").write_text("import no_such_package\n")
    file = directory / "pipeline.yaml"
    file.write_text(text)
    said = [str(problem) for problem in check_file(file).problems]
    assert all(one.startswith(f"{file}:") for one in said)
    return [one.removeprefix(f"{file}:").replace(str(directory), "DIRECTORY") for one in said]
