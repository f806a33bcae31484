"""The REST API under /api/v1, and its OpenAPI document (docs/http.md).

operations      what an operation is: method, path, types, handler
table           all operations
declared        operations that `pydanube.operations` declares
router          finds the operation of a request, reads it, sends the answer
json_forms      how types of the model are read from JSON
etags           versions of what is read, and of what is to be changed (If-Match)
openapi         the document, with descriptions from the source and limits of the model's fields
routes          the routes in the HTTP application
docs.html, docs.js
                the page that shows the document
stored_messages stored messages as JSON
brokers, subscriptions, dead_letters
                operations that only REST has
publishing      operations that publish, and webhooks
consuming       operations that consume: polls, events, WebSocket
"""

from .operations import BASE
from .routes import routes

__all__ = ["BASE", "routes"]
