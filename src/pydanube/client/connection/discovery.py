"""Finds the native addresses of the brokers when a client is given HTTP addresses, as in ``http://host:8650``.

Any listed server that answers knows the brokers of its cluster. It is asked when the client is opened, and again when
none of the brokers that it named can be reached.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

import msgspec

from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses, is_loopback
from pydanube.model.errors import DanubeError, Denied, Invalid, Unauthenticated, Unavailable
from pydanube.runtime.http_get import HttpAnswer, NotHttp, http_get
from pydanube.runtime.tls_transport import describe_failure

from .credentials import NO_CREDENTIALS, ClientCredentials
from .servers import HTTP_SCHEME, HTTPS_SCHEME, BrokerAddress

PATH: Final = "/api/v1/brokers"
ANSWER_BYTES_MAX: Final = 1024 * 1024
_DETAIL_CHARACTERS: Final = 300


class _Broker(msgspec.Struct):
    addresses: BrokerAddresses = NO_ADDRESSES


class _Brokers(msgspec.Struct):
    brokers: list[_Broker]


class _Problem(msgspec.Struct):
    detail: str = ""


async def find_brokers(
    servers: Sequence[BrokerAddress],
    timeout: float,
    credentials: ClientCredentials = NO_CREDENTIALS,
    tls: ssl.SSLContext | None = None,
) -> list[BrokerAddress]:
    """Return the native addresses of the brokers that the first HTTP server names which answers.

    timeout     seconds that each server has to answer
    tls         with it connections are encrypted: the servers have https://

    Raises Unavailable if that may succeed later, and Invalid if every listed address is wrong.
    """
    failures: list[DanubeError] = []
    for server in servers:
        try:
            return await _ask(server, timeout, await credentials.token(), tls)
        except (Unavailable, Invalid) as error:
            failures.append(error)
    told = "; ".join(one.message for one in failures)
    if all(isinstance(one, Invalid) for one in failures):
        raise Invalid(told)
    raise Unavailable(told)


async def _ask(server: BrokerAddress, timeout: float, token: str, tls: ssl.SSLContext | None) -> list[BrokerAddress]:
    url = f"{HTTP_SCHEME if tls is None else HTTPS_SCHEME}://{server}"
    try:
        async with asyncio.timeout(timeout):
            answer = await http_get(server.host, server.port, PATH, ANSWER_BYTES_MAX, token, tls)
    except TimeoutError:
        raise Unavailable(f"{url} did not answer within {timeout:g} s") from None
    except ssl.SSLError as error:
        raise Invalid(f"{url}: {describe_failure(error)}") from None
    except OSError as error:
        raise Unavailable(f"{url} cannot be reached: {error.strerror or error}") from None
    except NotHttp as error:
        hint = "http:// takes the HTTP port of a broker, 8650 by default, and danube:// its native port"
        raise Invalid(f"{url} is not the HTTP listener of a broker: {error}; {hint}") from None
    if answer.status != 200:
        raise _refusal(url, answer)
    try:
        found = msgspec.json.decode(answer.body, type=_Brokers).brokers
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Invalid(f"{url}{PATH} did not answer with brokers: it is no broker, or one of another release") from None
    native = [_reachable(BrokerAddress.parse(one.addresses.native), server) for one in found if one.addresses.native]
    if not native:
        raise Unavailable(f"{url} names no broker with a native address: it is starting, or of an earlier release")
    return list(dict.fromkeys(native))


def _refusal(url: str, answer: HttpAnswer) -> DanubeError:
    try:
        detail = msgspec.json.decode(answer.body, type=_Problem).detail[:_DETAIL_CHARACTERS]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        detail = ""
    told = f"{url}{PATH} answered {answer.status}" + (f": {detail}" if detail else "")
    if answer.status >= 500 or answer.status == 429:
        return Unavailable(told)
    if answer.status == 401:
        return Unauthenticated(told)
    if answer.status == 403:
        return Denied(told)
    return Invalid(told if detail else f"{told}: it is no broker, or one of an earlier release")


def _reachable(native: BrokerAddress, server: BrokerAddress) -> BrokerAddress:
    """Return the native address, with the host of the HTTP address if it is a loopback address on another machine.

    A broker that listens on all addresses, and is told no other (`server.advertised`), names its loopback address.
    """
    if is_loopback(native.host) and not is_loopback(server.host):
        return BrokerAddress(server.host, native.port)
    return native
