"""Objects in Redis.

    {PREFIX}o:KEY     the bytes of an object                        read with GETRANGE
    {PREFIX}i         hash of KEY -> ETAG SIZE MODIFIED_US MARK     what is known of each
    {PREFIX}k         sorted set of KEY, all with the score 0       Redis keeps these in the order of their bytes
    {PREFIX}n         how many puts there were; the next etag

A put is one script, so it is atomic. The client may send it again after a lost connection: the mark of a put shows
whether it has happened already. The braces put all keys into one slot, as a Redis cluster requires.

Redis is as durable as it is configured, which is checked when the store is opened: without an append-only file the
store reports that it is not durable, and a server that may evict objects when memory is short is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import SSLConnection

from pydanube.model.errors import (
    AlreadyExists,
    DanubeError,
    Denied,
    Invalid,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from pydanube.runtime.closing import Closing
from pydanube.runtime.randomness import identity

from .object_store import Buffer, Capabilities, ObjectInfo, check_key, check_range, joined
from .store_address import Secrets, StoreAddress, StoreOptions

T = TypeVar("T")

DEFAULT_PREFIX: Final = "danube"
OBJECT_BYTES_MAX: Final = 512 * 1024 * 1024
"""The largest value that Redis accepts."""

LIST_OBJECTS: Final = 500
DELETE_OBJECTS: Final = 500
CONNECTIONS_MAX: Final = 16

_PUT: Final = """
local found = redis.call('HGET', KEYS[2], ARGV[1])
if found then
  local etag, mark = string.match(found, '^(%S+) %S+ %S+ (%S+)$')
  if mark == ARGV[5] then return {'ok', found} end
  if ARGV[3] == 'create' then return {'exists'} end
  if ARGV[3] == 'match' and etag ~= ARGV[4] then return {'changed'} end
elseif ARGV[3] == 'match' then
  return {'changed'}
end
local now = redis.call('TIME')
local etag = redis.call('INCR', KEYS[4])
local info = string.format('%d %d %d%06d %s', etag, #ARGV[2], now[1], now[2], ARGV[5])
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], info)
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return {'ok', info}
"""


class RedisStore(Closing):
    """One prefix of a Redis database. Opened by `open_redis`, which checks how durable the server is."""

    def __init__(self, url: str, client: Redis, prefix: str, secrets: Secrets) -> None:
        self.url = url
        self._client = client
        self._names = f"{{{prefix}}}"
        self._secrets = secrets
        self._put = client.register_script(_PUT)
        self._durable = False
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(if_match=True, durable=self._durable, shared=True)

    async def connect(self) -> None:
        """Check that the server does not evict objects, and whether it is durable."""
        told = await self._ask(self._client.info("everything"))
        if told.get("maxmemory", 0) and told.get("maxmemory_policy", "noeviction") != "noeviction":
            raise Refused(
                f"{self.url} throws away objects when memory is short ({told['maxmemory_policy']}): "
                f"set its maxmemory-policy to noeviction"
            )
        self._durable = bool(told.get("aof_enabled", 0))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_key(key)
        whole = joined(data)
        if len(whole) > OBJECT_BYTES_MAX:
            raise Invalid(f"object {key} has {len(whole)} bytes, and Redis takes {OBJECT_BYTES_MAX}")
        mode = "create" if create else "any" if if_match is None else "match"
        names = [self._name(f"o:{key}"), self._name("i"), self._name("k"), self._name("n")]
        arguments: list[Any] = [key, bytes(whole), mode, if_match or "", identity()]
        answer = await self._ask(self._put(names, arguments))
        match answer[0]:
            case b"exists":
                raise AlreadyExists(f"object {key} exists already in {self.url}")
            case b"changed":
                raise Refused(f"object {key} in {self.url} is not the one with etag {if_match}")
        return _info(key, answer[1])

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        name = self._name(f"o:{check_key(key)}")
        check_range(start, end)
        async with self._client.pipeline(transaction=True) as asked:
            asked.exists(name)
            if end is None or end > start:
                asked.getrange(name, start, -1 if end is None else end - 1)
            answers = await self._ask(asked.execute())
        if not answers[0]:
            raise self._missing(key)
        return memoryview(answers[1] if len(answers) > 1 else b"")

    async def head(self, key: str) -> ObjectInfo:
        found = await self._ask(cast(Awaitable[Any], self._client.hget(self._name("i"), check_key(key))))
        if found is None:
            raise self._missing(key)
        return _info(key, found)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        lowest = f"({after}" if after and after >= prefix else f"[{prefix}"
        while True:
            page = self._client.zrangebylex(self._name("k"), lowest, f"({prefix}~" if prefix else "+", 0, LIST_OBJECTS)
            keys = cast("Sequence[bytes]", await self._ask(page))
            if not keys:
                return
            found = await self._ask(cast(Awaitable[Any], self._client.hmget(self._name("i"), keys)))
            for key, info in zip(keys, found, strict=True):
                if info is not None:  # deleted meanwhile
                    yield _info(key.decode(), info)
            lowest = f"({keys[-1].decode()}"

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), DELETE_OBJECTS):
            some = keys[first : first + DELETE_OBJECTS]
            async with self._client.pipeline(transaction=True) as asked:
                asked.unlink(*(self._name(f"o:{key}") for key in some))
                asked.hdel(self._name("i"), *some)
                asked.zrem(self._name("k"), *some)
                await self._ask(asked.execute())
        self._check_open()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._client.aclose()

    async def _ask(self, work: Awaitable[T]) -> T:
        try:
            self._check_open()
            return await work
        except (exceptions.RedisError, OSError) as error:
            raise self._explained(error) from None
        finally:
            if hasattr(work, "close"):
                work.close()  # a coroutine that was never started, because the store is closed

    def _name(self, rest: str) -> str:
        return self._names + rest

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the store {self.url} is closed")

    def _missing(self, key: str) -> NotFound:
        return NotFound(f"object {key} is not in {self.url}")

    def _explained(self, error: Exception) -> DanubeError:
        message = f"{self.url}: {self._secrets.scrub(error)}"
        if isinstance(error, exceptions.NoPermissionError) or "can't run this command" in str(error):
            return Denied(message)  # the second is the message of a script
        if isinstance(error, exceptions.AuthenticationError) or str(error).startswith(("NOAUTH", "WRONGPASS")):
            return Unauthenticated(message)
        return Unavailable(message)


def _info(key: str, text: bytes) -> ObjectInfo:
    etag, size, modified, _ = text.decode().split(" ")
    return ObjectInfo(key, int(size), etag, int(modified))


async def open_redis(address: StoreAddress, settings: Mapping[str, str]) -> RedisStore:
    """Open `redis://HOST:PORT/DATABASE?prefix=NAME`; `rediss` is encrypted."""
    address.expect(["prefix"])
    if not address.host:
        raise Invalid(f"a {address.scheme} URL names a host: {address.scheme}://127.0.0.1:6379/0")
    if address.path and not address.path.isdecimal():
        raise Invalid(f"the path of a {address.scheme} URL is the number of a database; a prefix is ?prefix=NAME")
    options = StoreOptions(address.scheme, settings)
    connection: dict[str, Any] = {
        "host": address.host,
        "port": address.port or 6379,
        "db": int(address.path or 0),
        "username": options.text("username") or None,
        "password": options.secret("password") or None,
        "socket_timeout": options.seconds("timeout_s", 30),
        "socket_connect_timeout": options.seconds("connect_timeout_s", 5),
        "health_check_interval": 15,
    }
    if address.scheme == "rediss":
        connection |= {"connection_class": SSLConnection, "ssl_ca_certs": options.text("ca_file") or None}
    options.done()
    pool = BlockingConnectionPool(max_connections=CONNECTIONS_MAX, timeout=30, **connection)
    client = Redis.from_pool(pool)
    prefix = check_key(address.parameters.get("prefix") or DEFAULT_PREFIX)
    store = RedisStore(address.shown, client, prefix, options.secrets)
    try:
        await store.connect()
    except BaseException:
        await store.close()
        raise
    return store
