"""One connection, and what a client makes of a broker that answers nonsense or nothing."""

from __future__ import annotations

import asyncio

from pydanube.client.address import Address
from pydanube.client.connection import Connection
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import SystemClock


async def test_everyone_hears_that_a_connection_ended_even_when_one_fails_over_it(url: str) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    connection = await Connection.open(Address.parse(url.removeprefix("danube://")), SystemClock())
    heard: list[DanubeError] = []
    mistake = ZeroDivisionError()

    def stumble(_: DanubeError) -> None:
        raise mistake

    connection.on_lost("first", stumble)
    connection.on_lost("second", heard.append)
    await connection.close()
    assert connection.lost is not None
    assert (heard, problems) == ([connection.lost], [mistake])
