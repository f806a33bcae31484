"""Checks what is in deploy/ for Prometheus and Grafana with promtool: `make check-deploy`.

The rules are parsed and their tests are run, every expression of the dashboard is parsed, and a scrape of a broker with
a topic and a subscription is linted. Metrics that a rule or the dashboard names and no broker has are
found by tests/gateway/test_http_metrics.py, which `make test` runs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from pydanube import connect, testing

HERE = Path(__file__).parent
MISSING = "promtool is missing. It is part of Prometheus; on Debian and Ubuntu: apt-get install prometheus"
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$topic": ".*"}


def dashboard_expressions() -> list[str]:
    """Return the queries of the dashboard, with values in place of Grafana's variables."""
    panels = json.loads((HERE / "grafana" / "danube.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    pattern = re.compile("|".join(map(re.escape, VARIABLES)))
    return [pattern.sub(lambda match: VARIABLES[match[0]], one) for one in found]


def as_rules(expressions: list[str]) -> str:
    """Return a rule file that promtool can check; JSON is YAML too."""
    rules = [{"record": f"dashboard:query:{number}", "expr": one} for number, one in enumerate(expressions)]
    return json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})


async def scrape() -> str:
    """Return what a broker with some traffic answers."""
    async with testing._server(None, {}) as server, connect(server.url) as client:
        await client.create_topic("/default/orders")
        async with client.consumer("/default/orders", subscription="billing", start="earliest") as consumer:
            async with client.producer("/default/orders") as producer:
                await producer.send(b"one")
            await consumer.ack(await consumer.receive(timeout=60))
        opened = await asyncio.to_thread(urllib.request.urlopen, f"{server.http_url}/metrics")
        return (await asyncio.to_thread(opened.read)).decode()


def promtool(*arguments: str, given: str | None = None) -> bool:
    sys.stdout.write(f"promtool {' '.join(arguments)}\n")
    sys.stdout.flush()
    done = subprocess.run(["promtool", *arguments], input=given, text=True, cwd=HERE / "prometheus")
    return done.returncode == 0


def main() -> int:
    if shutil.which("promtool") is None:
        sys.stderr.write(MISSING + "\n")
        return 1
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as queries:
        queries.write(as_rules(dashboard_expressions()))
        queries.flush()
        passed = [
            promtool("check", "rules", "danube-rules.yml"),
            promtool("test", "rules", "danube-rules-test.yml"),
            promtool("check", "config", "prometheus.yml"),
            promtool("check", "rules", queries.name),
            promtool("check", "metrics", given=asyncio.run(scrape())),
        ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
