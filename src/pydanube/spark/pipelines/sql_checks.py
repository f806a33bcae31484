"""Checks SQL before Spark starts: whether it can be parsed, which tables it names, whether their columns exist, and
whether they can be cast as it says.

The parser is sqlglot's, for Spark's dialect. Columns are checked only where every table of a SELECT has known columns
and nothing in it makes columns of its own (such as LATERAL VIEW). Whatever this cannot decide is left to Spark: a
column is refused only if it certainly does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from pydanube.model.text import did_you_mean

from .casts import Column, kind_of, kind_of_type, refusal
from .file_places import Place, Problems, TextInFile

Columns = tuple[str, ...] | None
"""The columns of a table, which know their kind if they are a `Column`; None: not known before Spark runs."""

SqlNode: TypeAlias = Any
"""A node of sqlglot's syntax tree; the name of its class differs between releases."""

DIALECT: Final = "spark"
_WINDOW: Final = re.compile(r"\bwindow(?=\s*\()", re.IGNORECASE)
"""Spark's function `window`, which sqlglot takes for the keyword. It is replaced by a name of the same length."""
_WINDOW_STAND_IN: Final = "windo_"
_TOKEN: Final = re.compile(r"\s*(but got|Got)? ?<Token.*?>\.?")
_INCOMPLETE: Final = re.compile(r"Required keyword: .* missing for <class '.*\.(\w+)'>.*", re.DOTALL)
_CLAUSES: Final = frozenset({"WHERE", "HAVING", "JOIN", "FROM", "LIMIT", "CASE", "CAST"})
_MADE_BY_SPARK: Final = frozenset({"window", "session_window", "current_date", "current_timestamp", "current_user"})
"""Names that Spark resolves although no table has such a column."""


def parse_query(sql: TextInFile, problems: Problems) -> exp.Query | None:
    """Parse one SELECT statement; None if it is not one, which is reported with its place."""
    statements = _parse(sql, lambda text: sqlglot.parse(text, dialect=DIALECT), problems)
    if statements is None:
        return None
    found = [one for one in statements if one is not None and not isinstance(one, exp.Semicolon)]
    if len(found) != 1:
        told = "no statement" if not found else f"{len(found)} statements"
        problems.add(sql.place, f"the SQL has {told}: it is one SELECT")
        return None
    if not isinstance(found[0], exp.Query):
        told = found[0].key.upper()
        problems.add(sql.place, f"the SQL is a {told} statement: a transform is a SELECT, and sinks write its rows")
        return None
    return found[0]


def parse_condition(check: TextInFile, problems: Problems) -> SqlNode:
    """Parse the condition of an expectation; None if it cannot be parsed, which is reported with its place."""
    found = _parse(check, lambda text: [sqlglot.parse_one(text, dialect=DIALECT, into=exp.Condition)], problems)
    if not found or found[0] is None:
        return None
    if found[0].find(exp.Query) is not None:
        problems.add(check.place, "a check looks at one row: a subquery is not allowed, join in a transform instead")
        return None
    return found[0]


def _parse(sql: TextInFile, parse: Callable[[str], list[SqlNode]], problems: Problems) -> list[SqlNode] | None:
    text = _WINDOW.sub(_WINDOW_STAND_IN, sql.text)
    try:
        return parse(text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = first.get("line") or 1, first.get("col") or 1
        highlight = str(first.get("highlight") or "")
        at = sql.place_of(line, max(1, column - len(highlight) + 1))
        near = f" near {_shown(highlight)!r}" if highlight else ""
        inside = f" (in line {line} of the SQL)" if sql.indent is None and line > 1 else ""
        problems.add(at, f"the SQL cannot be parsed{near}{inside}: {_said(str(first.get('description') or error))}")
    except (SqlglotError, RecursionError) as error:
        said = (
            "a quote or comment is not closed" if "tokeniz" in str(error) else str(error) or "it is nested too deeply"
        )
        problems.add(sql.place, f"the SQL cannot be parsed: {said}")
    return None


def _shown(text: str) -> str:
    return text.replace(_WINDOW_STAND_IN, "window")


def _said(description: str) -> str:
    if (missing := _INCOMPLETE.fullmatch(description)) is not None:
        clause = missing[1].upper()
        return f"the {clause} is not complete" if clause in _CLAUSES else "something is missing after it"
    said = _TOKEN.sub("", description).strip()
    if said == "Invalid expression / Unexpected token":
        said = "this word is not expected here"
    return _shown(said[:1].lower() + said[1:])


def tables_of(query: exp.Query) -> dict[str, exp.Table]:
    """Return the tables that the query reads, in order. Names with a dot, such as parquet.`/path`, are Spark's own."""
    found: dict[str, exp.Table] = {}
    for scope in traverse_scope(query):
        for node, source in scope.selected_sources.values():
            if isinstance(source, exp.Table) and isinstance(node, exp.Table) and node.name and not node.db:
                found.setdefault(node.name.lower(), node)
    named = {one.alias.lower() for one in query.find_all(exp.CTE)}
    for node in query.find_all(exp.Table):  # also those in places that have no scope
        if node.name and not node.db and node.name.lower() not in named:
            found.setdefault(node.name.lower(), node)
    return found


def place_in(sql: TextInFile, node: SqlNode) -> Place:
    """Return the place in the file of a table or column of the SQL."""
    for one in node.walk():
        line, column = one.meta.get("line"), one.meta.get("col")
        if line and column:
            return sql.place_of(line, max(1, column - len(str(one.this)) + 1))
    return sql.place


def check_columns(sql: TextInFile, query: exp.Query, tables: Mapping[str, Columns], problems: Problems) -> Columns:
    """Report columns that no table of the query has; return the columns of its result.

    `tables` has the columns of each input, by its name in lower case.
    """
    made: dict[int, Columns] = {}
    for scope in traverse_scope(query):
        known = _columns_of_sources(scope, tables, made)
        if known is not None and _is_plain(scope):
            _check_scope(sql, scope, known, problems)
        made[id(scope.expression)] = _result_columns(scope, known)
    return made.get(id(query))


def check_condition(check: TextInFile, condition: SqlNode, columns: Columns, problems: Problems) -> None:
    """Report columns of an expectation that its input does not have."""
    if columns is None:
        return
    known = {name.lower() for name in columns}
    for column in condition.find_all(exp.Column):
        first = column.parts[0].name
        if first.lower() not in known | _MADE_BY_SPARK:
            problems.add(place_in(check, column), _unknown(first, columns))
    _check_casts(check, condition.find_all(exp.Cast), {"": columns}, problems)


def _columns_of_sources(
    scope: Scope, tables: Mapping[str, Columns], made: Mapping[int, Columns]
) -> dict[str, tuple[str, ...]] | None:
    """Return the columns by the alias of each table in FROM; None if one of them is not known."""
    found: dict[str, tuple[str, ...]] = {}
    for alias, (node, source) in scope.selected_sources.items():
        if isinstance(source, Scope):
            columns = made.get(id(source.expression))
        else:
            columns = tables.get(node.name.lower()) if isinstance(node, exp.Table) and not node.db else None
        if columns is None:
            return None
        found[alias.lower()] = columns
    return found or None


def _is_plain(scope: Scope) -> bool:
    """Return whether all columns that a SELECT may name come from its tables or its own aliases."""
    odd = scope.expression.find(exp.Lateral, exp.Pivot, exp.UDTF)
    return isinstance(scope.expression, exp.Select) and not scope.is_correlated_subquery and odd is None


def _check_scope(sql: TextInFile, scope: Scope, known: Mapping[str, tuple[str, ...]], problems: Problems) -> None:
    names = {name.lower() for columns in known.values() for name in columns}
    select: SqlNode = scope.expression
    aliases = {one.alias.lower() for one in select.selects if one.alias}
    arguments = {str(name.name).lower() for one in scope.expression.find_all(exp.Lambda) for name in one.expressions}
    allowed = names | aliases | arguments | _MADE_BY_SPARK
    everything = tuple(dict.fromkeys(name for columns in known.values() for name in columns))
    for column in scope.columns:
        if isinstance(column.this, exp.Star):
            continue
        parts = [part.name.lower() for part in column.parts]
        if parts[0] in known and len(parts) > 1:
            if parts[1] not in {name.lower() for name in known[parts[0]]}:
                problems.add(place_in(sql, column), _unknown(column.parts[1].name, known[parts[0]], parts[0]))
        elif parts[0] not in allowed:
            problems.add(place_in(sql, column), _unknown(column.parts[0].name, everything))
    casts = (one for one in scope.find_all(exp.Cast) if str(one.this.name).lower() not in arguments)
    _check_casts(sql, casts, known, problems)


def _check_casts(
    sql: TextInFile, casts: Iterable[SqlNode], known: Mapping[str, tuple[str, ...]], problems: Problems
) -> None:
    """Report casts of columns that Spark can never do; `known` has the columns by the alias of their table."""
    for cast in casts:
        column = _find_column(cast.this, known)
        if column is not None and (told := refusal(column, cast.to)):
            problems.add(place_in(sql, cast.this), told)


def _find_column(node: SqlNode, known: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the column that a node names; None: it names none, or a field of one, or one of several tables."""
    if not isinstance(node, exp.Column):
        return None
    parts = [part.name.lower() for part in node.parts]
    tables = [known[parts[0]]] if len(parts) == 2 and parts[0] in known else list(known.values())
    if len(parts) > 1 and parts[0] not in known:
        return None
    found = [one for columns in tables for one in columns if one.lower() == parts[-1]]
    return found[0] if len(found) == 1 else None


def _unknown(name: str, columns: tuple[str, ...], table: str = "") -> str:
    of = f" of {table}" if table else ""
    return f"there is no column {name!r}{of}: {did_you_mean(name, columns, 'there are')}"


def _result_columns(scope: Scope, known: Mapping[str, tuple[str, ...]] | None) -> Columns:
    if not isinstance(scope.expression, exp.Select):
        return None
    found: list[str] = []
    for one in scope.expression.selects:
        if one.is_star:
            plain = isinstance(one, exp.Star) and not any(
                one.args.get(key) for key in ("except_", "except", "replace", "rename")
            )
            if known is None or not plain:
                return None
            found += [name for columns in known.values() for name in columns]
        elif not one.alias_or_name:
            return None
        else:
            found.append(Column(one.alias_or_name, _kind(one.unalias(), known or {})))
    return tuple(dict.fromkeys(found))


def _kind(node: SqlNode, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return the kind of what a SELECT returns; empty: it is not known."""
    if isinstance(node, exp.Cast):
        return kind_of_type(node.to)
    column = _find_column(node, known)
    return "" if column is None else kind_of(column)
