"""Docstrings of classes and of their fields, read from the source: they are the descriptions in the document."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from typing import NamedTuple

import msgspec


class Docstrings(NamedTuple):
    """The docstring of a class, and those that stand below its fields; empty where there is no source."""

    whole: str
    fields: dict[str, str]


@cache
def docstrings_of(kind: type) -> Docstrings:
    found = _classes(kind.__module__).get(kind.__name__)
    base = kind.__base__
    fields = dict(docstrings_of(base).fields) if base not in (None, object, tuple, msgspec.Struct) else {}
    if found is None:
        return Docstrings("", fields)
    last = ""
    for statement in found.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            last = statement.target.id
            continue
        if last and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            fields[last] = _in_json(str(statement.value.value))
        last = ""
    return Docstrings(_in_json(ast.get_docstring(found) or ""), fields)


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module, by name. A module is parsed once, because that takes milliseconds."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}


def _in_json(docstring: str) -> str:
    """Return a docstring in the words of JSON."""
    return re.sub(r"\bNone\b", "null", inspect.cleandoc(docstring))
