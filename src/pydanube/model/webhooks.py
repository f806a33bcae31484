"""Webhooks: URLs of the HTTP listener whose requests become messages of a topic, and how these are authenticated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from .errors import Invalid
from .names import TopicName
from .text import Choice, Number, did_you_mean, read

WINDOW_S_MAX: Final = 24 * 3600
SECRET_CHARACTERS_MIN: Final = 8

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_HEADER: Final = re.compile(r"[a-z0-9-]{1,100}")


class WebhookScheme(StrEnum):
    """How the sender of a webhook shows that it knows the secret."""

    TOKEN = "token"  # noqa: S105 - a word
    """The secret itself is in the header `Authorization: Bearer` or `X-Webhook-Token`."""
    HMAC = "hmac"
    """`X-Webhook-Signature` has the HMAC of time and body, `X-Webhook-Timestamp` the time in seconds."""
    STANDARD = "standard"
    """As in Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`."""
    GITHUB = "github"
    """`X-Hub-Signature-256` has the HMAC of the body; there is no time."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook: requests to /webhooks/{name} become messages of `topic`."""

    name: str
    topic: TopicName
    scheme: WebhookScheme = WebhookScheme.HMAC
    secret: str = field(default="", repr=False)
    secret_file: str = ""
    """The file that has the secret, if the settings do not have it."""
    window_s: int = 300
    """How much the time of a request may differ from that of the broker."""
    key_header: str = ""
    """The header whose value becomes the key of the message."""
    headers: tuple[str, ...] = ()
    """The headers that become attributes of the message, by their names in small letters."""

    def __post_init__(self) -> None:
        here = f"webhook {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise Invalid(f"{here} has no allowed name: use 1 to 100 ASCII letters, digits, '_' and '-'")
        if bool(self.secret) == bool(self.secret_file):
            raise Invalid(f"{here} needs either secret or secret_file")
        if self.secret and len(self.secret) < SECRET_CHARACTERS_MIN:
            raise Invalid(f"{here}: its secret has fewer than {SECRET_CHARACTERS_MIN} characters")
        if not 1 <= self.window_s <= WINDOW_S_MAX:
            raise Invalid(f"{here}: window_s={self.window_s} is not allowed: use 1 to {WINDOW_S_MAX}")
        for name in (*self.headers, *([self.key_header] if self.key_header else [])):
            if not _HEADER.fullmatch(name):
                raise Invalid(f"{here}: {name!r} is not the name of a header in small letters")

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Return the webhook that a table of the settings describes. The error never shows the secret."""
        here = f"webhook {name!r}"
        unknown = sorted(set(options) - set(cls.__slots__) | ({"name"} & set(options)))
        if unknown:
            raise Invalid(f"{here}: {unknown[0]!r} is not known: {did_you_mean(unknown[0], cls.__slots__[1:])}")
        if "topic" not in options:
            raise Invalid(f"{here} needs a topic, such as /default/orders")
        values = dict(options)
        scheme = read(Choice(tuple(WebhookScheme)), values.get("scheme", "hmac"), f"{here}: scheme")
        window_s = read(Number(1, WINDOW_S_MAX), values.get("window_s", 300), f"{here}: window_s")
        headers = values.get("headers", ())
        if not isinstance(headers, (list, tuple)) or not all(isinstance(one, str) for one in headers):
            raise Invalid(f"{here}: headers is a list of names")
        for one in ("secret", "secret_file", "key_header"):
            if not isinstance(values.get(one, ""), str):
                raise Invalid(f"{here}: {one} is text")
        try:
            topic = TopicName.parse(values["topic"])
        except Invalid as error:
            raise Invalid(f"{here}: {error.message}") from None
        return cls(
            name,
            topic,
            WebhookScheme(scheme),
            values.get("secret", ""),
            values.get("secret_file", ""),
            window_s,
            values.get("key_header", "").lower(),
            tuple(one.lower() for one in headers),
        )

    def describe(self) -> list[str]:
        """Return the options as `name=value`, with the secret hidden."""
        shown = [f"topic={self.topic}", f"scheme={self.scheme}", f"window_s={self.window_s}"]
        shown.append(f"secret_file={self.secret_file}" if self.secret_file else "secret=***")
        shown += [f"key_header={self.key_header}"] if self.key_header else []
        return shown + ([f"headers={','.join(self.headers)}"] if self.headers else [])
