"""Every operation of the broker, tried with every role: it is allowed exactly if the rules allow what its row says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from access_world import open_world

import pydanube.gateway
from operations import BY_ID, EXTRA, FACADE, UNCHECKED
from pydanube.broker import handlers
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError, Denied

ROWS = {**FACADE, **EXTRA}

LISTENERS = "".join(one.read_text() for one in Path(pydanube.gateway.__file__).parent.rglob("*.py"))


async def run(call, world, principal) -> DanubeError | None:
    """Do a call as a principal, and return its error. What the broker is not built for counts as an error too."""
    try:
        result = call(world, principal)
        if inspect.isawaitable(result):
            await result
    except DanubeError as error:
        return error
    return None


@pytest.mark.parametrize("name", ROWS)
async def test_each_role_may_do_what_the_rules_say(name: str, tmp_path: Path):
    needs, call = ROWS[name]
    async with open_world(tmp_path) as world:
        for role, is_allowed in world.roles(needs):
            before = () if is_allowed else await world.fingerprint()
            error = await run(call, world, Principal(role))
            refusals = (Denied,) if is_allowed else (Denied, BY_ID.get(name, Denied))
            assert isinstance(error, refusals) is not is_allowed, (name, role, error)
            assert is_allowed or await world.fingerprint() == before, (name, role)


async def public_methods(world) -> dict[str, bool]:
    """Return the public methods of the broker and its parts, and whether the first argument is the principal."""
    broker, found = world.broker, {}
    parts = {"": broker}
    for name in dir(broker):
        part = getattr(broker, name) if not name.startswith("_") else None
        if type(part).__module__.startswith("pydanube.broker"):
            parts[name] = part
    for prefix, part in parts.items():
        for name, method in inspect.getmembers(type(part), inspect.isfunction):
            if not name.startswith("_"):
                arguments = list(inspect.signature(method).parameters)
                found[f"{prefix}.{name}".lstrip(".")] = arguments[1:2] == ["principal"]
    return found


def is_only_carried_out(name: str) -> bool:
    """Return whether listeners reach a method by an operation only: those are tried with every role on the listeners,
    in test_listener_operations.py."""
    part, _, method = name.rpartition(".")
    carried_out = re.search(rf"\bb(roker)?\.{re.escape(name)}\b", inspect.getsource(handlers))
    return part != "" and carried_out is not None and not re.search(rf"\b_?{part}\.{method}\b", LISTENERS)


async def test_every_method_has_a_row_or_an_operation_or_a_reason(tmp_path: Path):
    async with open_world(tmp_path) as world:
        methods = await public_methods(world)
    operations = {name for name in methods.keys() - UNCHECKED.keys() if is_only_carried_out(name)}
    assert methods.keys() == FACADE.keys() | UNCHECKED.keys() | operations
    assert not FACADE.keys() & (UNCHECKED.keys() | operations)
    assert all(methods[name] for name in FACADE.keys() | operations)


def test_no_listener_calls_what_is_the_brokers_own():
    own = [name for name, reason in UNCHECKED.items() if reason == "the broker itself"]
    assert len(own) > 10
    for name in own:
        assert not re.search(rf"broker\.{re.escape(name)}\b", LISTENERS), name
    assert not re.search(r"broker\._[a-z]", LISTENERS), "a listener reaches into the broker"
