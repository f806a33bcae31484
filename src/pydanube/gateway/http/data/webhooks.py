"""Receives webhooks: a request to /webhooks/{name} becomes one message of the topic that the name is bound to.

Nothing is done, and nothing counts against the webhook, before the sender has shown that it knows the secret; secrets
are compared in constant time and never shown. A request whose headers are right for no webhook is refused before its
body is read, and few others prove themselves at the same time, of which each webhook and each address has a share. A
name that no webhook has is treated as one whose secret nobody knows: the body is read or not for the same headers. A
signature covers the body and, except for `github`, the time, which must be within the window of the webhook.

A request that is sent again within the window is recognised by its signature (`standard` and `github`: by the id that
comes with it), and answered as the first was, without a second message: a sender that did not get the answer may repeat
it, and one who recorded the request gains nothing. This memory is bounded and lost at a restart: then a repetition
within the window becomes a second message. Requests with a `token` have no signature and are never taken for
repetitions.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from starlette.datastructures import Headers

from pydanube.core.access import Principal
from pydanube.model.errors import Invalid, NotFound, Unauthenticated, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.webhooks import Webhook, WebhookScheme
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.network import counted_address

from .messages import MessageColumns
from .publishing import Publisher, PublishTarget, StoredAt

PRODUCER: Final = "webhook"
REMEMBERED_MAX: Final = 10_000
"""Signatures of one webhook that are remembered; beyond it, the oldest is forgotten."""

PROVING_MAX: Final = 100
"""Requests to all webhooks whose signature is not checked yet: each holds its body."""

_STANDARD_PREFIX: Final = "whsec_"


class Signature(NamedTuple):
    """What identifies a request whose signature is right."""

    text: str
    """Empty: the request has none, and is never taken for a repetition."""
    expires_at: float
    """Seconds since 1970: from then on, the time of the request is outside of the window."""


class Webhooks:
    """The webhooks of the settings."""

    def __init__(self, webhooks: tuple[Webhook, ...], publisher: Publisher, clock: Clock) -> None:
        self._bound = {one.name: _BoundWebhook(one, publisher, clock) for one in webhooks}
        self._clock = clock
        self._window_s_max = max((one.window_s for one in webhooks), default=0)
        self._proving = Budget(PROVING_MAX)

    @contextmanager
    def proving(self, name: str, address: str) -> Iterator[None]:
        """Receive and check a request from this address in this block. Raises Unavailable if too many do."""
        users = (f"webhook {name}", f"address {counted_address(address)}")
        if not self._proving.take(1, *users):
            raise Unavailable("too many webhooks are arriving at once: send the request again, later")
        try:
            yield
        finally:
            self._proving.give_back(1, *users)

    def check(self, name: str, headers: Headers) -> None:
        """Check what can be seen without the body. Headers that may be right for one webhook pass for every name.
        Raises NotFound, and Unauthenticated."""
        now_s = self._clock.now_us() / MICROSECONDS
        if _may_be_signed(headers, now_s, self._window_s_max):
            return
        bound = self._bound.get(name)
        if bound is None:
            raise _unknown(name)
        check_headers(bound.webhook, headers, now_s)  # which raises, unless there is a right token

    def topic_of(self, name: str) -> TopicName:
        return self._bound[name].webhook.topic

    def verify(self, name: str, headers: Headers, body: bytes) -> Signature:
        """Return the signature of a request. Raises NotFound for an unknown name, after the same work, and
        Unauthenticated if the request is not signed with its secret."""
        bound = self._bound.get(name)
        if bound is None:
            _hmac(b"unknown", body)
            raise _unknown(name)
        return bound.verify(headers, body)

    async def receive(
        self, principal: Principal, name: str, signature: Signature, headers: Headers, body: bytes
    ) -> StoredAt:
        """Publish one verified request and return where it is stored, once it has the ack level of its topic."""
        return await self._bound[name].receive(principal, signature, headers, body)


class _BoundWebhook:
    def __init__(self, webhook: Webhook, publisher: Publisher, clock: Clock) -> None:
        self.webhook = webhook
        self._publisher = publisher
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, asyncio.Future[StoredAt]]] = OrderedDict()
        """By signature: when it expires, and where its message is stored."""

    def verify(self, headers: Headers, body: bytes) -> Signature:
        return verify(self.webhook, headers, body, self._clock.now_us() / MICROSECONDS)

    async def receive(self, principal: Principal, signature: Signature, headers: Headers, body: bytes) -> StoredAt:
        now_s = self._clock.now_us() / MICROSECONDS
        self._forget_expired(now_s)
        if not signature.text:
            return await self._publish(principal, headers, body)
        known = self._seen.get(signature.text)
        if known is not None:
            return await asyncio.shield(known[1])
        stored: asyncio.Future[StoredAt] = asyncio.get_running_loop().create_future()
        self._seen[signature.text] = (signature.expires_at, stored)
        try:
            place = await self._publish(principal, headers, body)
        except BaseException as error:
            self._seen.pop(signature.text, None)  # it may be sent again
            stored.set_exception(error if isinstance(error, Exception) else Invalid("the first request was aborted"))
            stored.exception()  # asyncio logs an exception that no task has retrieved
            raise
        stored.set_result(place)
        return place

    async def _publish(self, principal: Principal, headers: Headers, body: bytes) -> StoredAt:
        webhook = self.webhook
        attributes = {"webhook": webhook.name}
        for name in ("content-type", *webhook.headers):
            if name in headers:
                attributes[name] = headers[name]
        key = headers.get(webhook.key_header) if webhook.key_header else None
        messages = MessageColumns([body], [key], [attributes], self._clock.now_us(), None, is_batch=False)
        target = PublishTarget(webhook.topic, producer=PRODUCER)
        (place,) = await self._publisher.publish(principal, target, messages, len(body))
        return place

    def _forget_expired(self, now_s: float) -> None:
        while self._seen:
            signature, (expires_at, stored) = next(iter(self._seen.items()))
            if (expires_at > now_s or not stored.done()) and len(self._seen) < REMEMBERED_MAX:
                return
            del self._seen[signature]


def _unknown(name: str) -> NotFound:
    return NotFound(f"webhook {name!r} does not exist: bind it in the settings, [http.webhooks.{name}]")


def _may_be_signed(headers: Headers, now_s: float, window_s: int) -> bool:
    """Return whether a request with these headers may be signed for a webhook with this window."""
    if "x-hub-signature-256" in headers:
        return True
    pairs = (("x-webhook-signature", "x-webhook-timestamp"), ("webhook-signature", "webhook-timestamp"))
    return any(one in headers and _is_near(headers.get(time, ""), now_s, window_s) for one, time in pairs)


def _is_near(text: str, now_s: float, window_s: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12 and abs(int(text) - now_s) <= window_s


def check_headers(webhook: Webhook, headers: Headers, now_s: float) -> None:
    """Raise Unauthenticated if these headers are wrong whatever the body is."""
    match webhook.scheme:
        case WebhookScheme.TOKEN:
            verify(webhook, headers, b"", now_s)
        case WebhookScheme.GITHUB:
            _check("x-hub-signature-256" in headers, webhook, "X-Hub-Signature-256")
        case WebhookScheme.HMAC:
            _check("x-webhook-signature" in headers, webhook, "X-Webhook-Signature")
            _check_time(webhook, headers.get("x-webhook-timestamp", ""), now_s)
        case WebhookScheme.STANDARD:
            _check("webhook-signature" in headers, webhook, "webhook-signature")
            _check_time(webhook, headers.get("webhook-timestamp", ""), now_s)


def verify(webhook: Webhook, headers: Headers, body: bytes, now_s: float) -> Signature:
    """Return the signature of a request. Raises Unauthenticated if it is wrong, missing, or not of this time."""
    match webhook.scheme:
        case WebhookScheme.TOKEN:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-webhook-token", "")
            _check(hmac.compare_digest(given.encode(), webhook.secret.encode()), webhook, "the token")
            return Signature("", 0.0)
        case WebhookScheme.GITHUB:
            given = headers.get("x-hub-signature-256", "").removeprefix("sha256=")
            expected = _hmac(webhook.secret.encode(), body).hex()
            _check(hmac.compare_digest(given.lower().encode(), expected.encode()), webhook, "X-Hub-Signature-256")
            # Two deliveries may have the same body; each has an id, which a repetition of it has too.
            delivery = headers.get("x-github-delivery", "")
            return Signature(f"{delivery} {expected}" if delivery else "", now_s + webhook.window_s)
        case WebhookScheme.HMAC:
            time = headers.get("x-webhook-timestamp", "")
            given = headers.get("x-webhook-signature", "").removeprefix("sha256=")
            expected = _hmac(webhook.secret.encode(), time.encode() + b"." + body).hex()
            _check(hmac.compare_digest(given.lower().encode(), expected.encode()), webhook, "X-Webhook-Signature")
            return Signature(expected, _check_time(webhook, time, now_s))
        case WebhookScheme.STANDARD:
            return _verify_standard(webhook, headers, body, now_s)


def _verify_standard(webhook: Webhook, headers: Headers, body: bytes, now_s: float) -> Signature:
    """Check a request of Standard Webhooks, which may have several signatures, of which one must be right."""
    number, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    expected = _hmac(_standard_key(webhook.secret), f"{number}.{time}.".encode() + body)
    encoded = base64.b64encode(expected)
    is_right = False
    for given in headers.get("webhook-signature", "").split(" "):
        version, _, signature = given.partition(",")
        is_right |= version == "v1" and hmac.compare_digest(signature.encode(), encoded)
    _check(is_right and bool(number), webhook, "webhook-signature")
    return Signature(number, _check_time(webhook, time, now_s))


def _standard_key(secret: str) -> bytes:
    """Return the key of a secret, which is Base64 if it has the prefix of Standard Webhooks."""
    if secret.startswith(_STANDARD_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_STANDARD_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _check(is_right: bool, webhook: Webhook, what: str) -> None:
    if not is_right:
        raise Unauthenticated(f"{what} of the request to webhook {webhook.name!r} is missing or wrong")


def _check_time(webhook: Webhook, text: str, now_s: float) -> float:
    """Return when the time is outside of the window. Raises Unauthenticated if it is already."""
    if not _is_near(text, now_s, webhook.window_s):
        raise Unauthenticated(
            f"the time of the request to webhook {webhook.name!r} is missing or differs from that of this broker by "
            f"more than {webhook.window_s} s: send it again with the time of now"
        )
    return int(text) + webhook.window_s + 1.0
