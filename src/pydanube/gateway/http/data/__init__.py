"""Publishing and consuming over HTTP (docs/http-data.md). `gateway.http.api` has the operations that use this.

endpoints       what the operations share
messages        messages as JSON, read and written
publishing      publishes batches and single messages
requesting      requests, whose callers wait for a reply
subscriber      a consumer attached to all partitions of a topic, and its flow control
sessions        consumers by their ids; silent ones are closed
long_poll       the answer to a long poll
events          Server-Sent Events, with and without a subscription
websocket       a consumer over WebSocket
webhooks        requests that become messages, authenticated by a secret
pieces          how much is sent to one client at a time
"""

from .endpoints import DataEndpoints

__all__ = ["DataEndpoints"]
