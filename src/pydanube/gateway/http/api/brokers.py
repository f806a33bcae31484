"""What REST alone has of brokers: the health of the one that is asked."""

from __future__ import annotations

from pydanube.gateway.http.health import Health
from pydanube.model.errors import Unavailable

from .operations import BASE, ApiCall, Operation


async def _health(call: ApiCall) -> Health:
    if reasons := call.broker.write_problems():
        raise Unavailable(f"the broker accepts no writes: {'; '.join(reasons)}")
    return Health("ready")


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{BASE}/health",
        name="getHealth",
        summary="Get whether this broker accepts writes",
        description="While the broker cannot store what it is sent, the answer is 503 and says why. `/healthz` and "
        "`/readyz` are for supervisors and load balancers.",
        tag="brokers",
        handler=_health,
        reply=Health,
        reply_example=Health("ready"),
    ),
)
