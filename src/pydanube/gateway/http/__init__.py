"""The HTTP listener: health, metrics, the REST API and the Confluent Schema Registry API (docs/http.md).

server          listens, counts connections, checks their timeouts, shuts down
connection      one client: uvicorn's HTTP/1.1 protocol, with limits on the time of headers, bodies and answers
websocket_connection  the same of a WebSocket
application     every request: limits on bodies, errors, the routes
authentication  credentials of a request
host_check      refuses requests for another host (DNS rebinding)
cors            which pages of other origins may ask from a browser
errors          the one mapping of the error tree to HTTP status codes
requests        reads parameters and bodies
health          /healthz and /readyz
data            publishing and consuming: polls, events, WebSockets, webhooks
api             the REST API under /api/v1, and its document at /openapi.json
metrics         /metrics; prometheus_text has its formats
schema_registry the Confluent Schema Registry API under /schema-registry
"""

from .server import HttpServer

__all__ = ["HttpServer"]
