"""grpc.reflection: tools such as grpcurl learn from it which services a listener has and what their messages are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from grpc import StatusCode

from .calls import Call
from .messages import SCHEMA

SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both versions have the same messages in different packages."""


class Reflection:
    """The reflection service of one listener, in one version."""

    def __init__(self, name: str, services: list[str]) -> None:
        """`name` is the version's service name; `services` are those of the listener, itself included."""
        self._messages = SCHEMA.messages(name.rpartition(".")[0])
        self._services = sorted(services)

    async def server_reflection_info(self, _call: Call, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            reply = self._messages["ServerReflectionResponse"](valid_host=request.host, original_request=request)
            try:
                self._answer(request, reply)
            except KeyError:
                reply.error_response.error_code = StatusCode.NOT_FOUND.value[0]
                reply.error_response.error_message = "there is no such file, symbol or extension"
            yield reply

    def _answer(self, request: Any, reply: Any) -> None:
        """Fill in the reply to one request. Raises KeyError for what does not exist."""
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    reply.list_services_response.service.add(name=name)
            case "file_by_filename":
                reply.file_descriptor_response.file_descriptor_proto.append(SCHEMA.file(request.file_by_filename))
            case "file_containing_symbol":
                file = SCHEMA.file_of(request.file_containing_symbol)
                reply.file_descriptor_response.file_descriptor_proto.append(file)
            case "all_extension_numbers_of_type":
                if not SCHEMA.has_message(request.all_extension_numbers_of_type):
                    raise KeyError(request.all_extension_numbers_of_type)
                name = request.all_extension_numbers_of_type
                reply.all_extension_numbers_response.base_type_name = name  # proto3 has no extensions: no numbers
            case "file_containing_extension":
                raise KeyError(request.file_containing_extension.containing_type)
            case _:
                reply.error_response.error_code = StatusCode.INVALID_ARGUMENT.value[0]
                reply.error_response.error_message = "the request asks for nothing that this version knows"
