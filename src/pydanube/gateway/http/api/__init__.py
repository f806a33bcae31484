"""The REST API under /api/v1, and its OpenAPI document (docs/http.md).

operations      what an operation is: method, path, types, handler
table           all operations
router          finds the operation of a request, reads it, sends the answer
json_forms      how types of the model look in JSON
openapi         the document
brokers         operations on brokers
"""

from .operations import BASE
from .routes import routes

__all__ = ["BASE", "routes"]
