"""Stages, and requests about them; see `requests` for all others."""

from __future__ import annotations

from typing import Protocol

from pydanube.broker import Broker, CommitRequest, SectionRequest, StageRequest
from pydanube.codec.native import requests as wire
from pydanube.core.access import Principal
from pydanube.model.names import TopicName


class Caller(Protocol):
    """Who asks, and whom."""

    broker: Broker
    principal: Principal


async def stage(caller: Caller, head: memoryview, body: memoryview) -> bytes:
    """A STAGE frame to the head of its answer. Cancelled: it may have happened."""
    request = wire.decode(head, wire.Stage)
    sections = [SectionRequest(TopicName.parse(one.topic), one.partition, one.lengths) for one in request.sections]
    wish = StageRequest(
        request.query, request.run, request.batch_id, request.task, request.attempt, request.part, sections
    )
    return wire.encode(wire.Staged(await caller.broker.staging.stage(caller.principal, wish, body)))


async def commit(caller: Caller, request: wire.CommitStages) -> wire.StagesCommitted:
    wish = CommitRequest(request.query, request.run, request.batch_id, request.stages, request.wait_ms)
    return wire.StagesCommitted(*await caller.broker.staging.commit(caller.principal, wish))


async def queries(caller: Caller, request: wire.ListStagedQueries) -> wire.StagedQueries:
    return wire.StagedQueries(*await caller.broker.staging.queries(caller.principal, request.after, request.count))


async def forget(caller: Caller, request: wire.ForgetStagedQuery) -> wire.Done:
    await caller.broker.staging.forget(caller.principal, request.query)
    return wire.Done()
