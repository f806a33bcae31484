"""The kinds of values that settings have, and how the values are written as text.

`read` accepts what a TOML file, an environment variable or a command line gives, and a value that it has read before;
it raises ValueError for anything else. `show` writes a value as text that `read` reads as the same value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final, Protocol

from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName
from pydanube.model.text import Kind, Number
from pydanube.model.topics import AckLevel
from pydanube.model.webhooks import Webhook

_USER: Final = re.compile(r"(://)([^/?#]*|[^/?#]*:[^?#]*)@")
"""User and password of a URL, also a password with a slash in it, which belongs into no URL."""
_PARAMETER: Final = re.compile(r"([?&])(?!prefix=)([^=&#]*=)[^&#]*")
_FRAGMENT: Final = re.compile(r"#.*")
_SECRET: Final = re.compile(
    r"key|secret|token|passw|passphrase|pwd|credential|signature|sas\b|connection_?string|auth|header|cookie",
    re.IGNORECASE,
)
_ENDPOINT: Final = re.compile(r"(https?://\S+)?")
_LISTED: Final = (str, IPv4Network, IPv6Network)


class ValueKind(Kind[Any], Protocol):
    def show(self, value: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class OrEmpty:
    """What another kind allows, or None, written as the empty text: something else decides."""

    kind: ValueKind

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or empty"

    def read(self, value: object) -> Any:
        return None if value is None or (isinstance(value, str) and not value.strip()) else self.kind.read(value)

    def show(self, value: Any) -> str:
        return "" if value is None else self.kind.show(value)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a type of the model parses."""

    allowed: str
    type: type[TopicName] | type[AckLevel]

    def read(self, value: object) -> TopicName | AckLevel:
        if isinstance(value, self.type):
            return value
        if not isinstance(value, str):
            raise ValueError
        try:
            return self.type.parse(value.strip())
        except Invalid:
            raise ValueError from None

    def show(self, value: TopicName | AckLevel) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class PathKind:
    """A path, relative to the directory where the broker was started; `~` is the home directory."""

    allowed: str = "a path"

    def read(self, value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
            raise ValueError
        try:
            return Path(value).expanduser()
        except RuntimeError:  # there is no such user
            raise ValueError from None

    def show(self, value: Path) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that `show` hides."""

    allowed: str = "text, or empty"

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        return value

    def show(self, value: str) -> str:
        return "***" if value else ""


@dataclass(frozen=True, slots=True)
class OptionsKind:
    """Names and text values: a table of the file, or `name=value,name=value`. `show` hides secrets."""

    allowed: str = "a table of text, or name=value,name=value"

    def read(self, value: object) -> dict[str, str]:
        if isinstance(value, str):
            pairs = [one.partition("=") for one in value.split(",")] if value.strip() else []
            if not all(equals for _, equals, _ in pairs):
                raise ValueError
            value = {name.strip(): text.strip() for name, _, text in pairs}
        if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value):
            raise ValueError
        if not all(isinstance(one, str | int | bool) for one in value.values()):
            raise ValueError
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}

    def show(self, value: dict[str, str]) -> str:
        return ",".join(f"{name}={'***' if _SECRET.search(name) else show_url(one)}" for name, one in value.items())


@dataclass(frozen=True, slots=True)
class WebhooksKind:
    """Webhooks by their names: tables of the file, or text. `show` hides secrets, as errors do.

    github topic=/default/github scheme=github secret_file=/run/secrets/github; shop topic=/default/sales ...
    """

    allowed: str = "a table for each webhook, or text: name topic=/default/orders secret_file=path; name ..."

    def read(self, value: object) -> tuple[Webhook, ...]:
        if isinstance(value, tuple) and all(isinstance(one, Webhook) for one in value):
            return value
        tables = self._tables(value) if isinstance(value, str) else value
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
            raise Invalid(f"http.webhooks is not allowed: use {self.allowed}")
        return tuple(Webhook.parse(name, options) for name, options in tables.items())

    def _tables(self, text: str) -> dict[str, dict[str, Any]]:
        tables: dict[str, dict[str, Any]] = {}
        for part in text.split(";"):
            name, *words = part.split() or [""]
            pairs = [one.partition("=") for one in words]
            if not name and text.strip():
                raise Invalid(f"http.webhooks is not allowed: use {self.allowed}")
            if name and not ("topic" in (key for key, _, _ in pairs) and all(equals for _, equals, _ in pairs)):
                # the name and the words may be parts of a secret with blanks or semicolons
                raise Invalid(
                    f"http.webhooks is not allowed: use {self.allowed}. A secret with a blank or a semicolon belongs "
                    f"into a secret_file"
                )
            options: dict[str, Any] = {key: value for key, _, value in pairs}
            if "headers" in options:
                options["headers"] = options["headers"].split(",")
            if name:
                tables[name] = options
        return tables

    def show(self, value: tuple[Webhook, ...]) -> str:
        return "; ".join(" ".join([one.name, *one.describe()]) for one in value)


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches a pattern."""

    allowed: str
    pattern: re.Pattern[str]

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value.strip()):
            raise ValueError
        return value.strip()

    def show(self, value: str) -> str:
        return value


class Url(Text):
    """A URL that matches a pattern. `show` hides what may be credentials in it."""

    def show(self, value: str) -> str:
        return show_url(value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """Values that `parse` reads: an array of the file, or text with separators between them."""

    allowed: str
    parse: Callable[[str], object]
    separator: str = ","

    def read(self, value: object) -> tuple[Any, ...]:
        given = value.split(self.separator.strip()) if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not all(isinstance(one, _LISTED) for one in given):
            raise ValueError
        return tuple(self.parse(text) for one in given if (text := str(one).strip()))

    def show(self, value: tuple[Any, ...]) -> str:
        return self.separator.join(map(str, value))


PORT: Final = Number(0, 65_535)
TOPIC: Final = Parsed("the full name of a topic, such as /system/audit", TopicName)
ACK_LEVEL: Final = Parsed("one of durable, stored, written, memory", AckLevel)
STORE_URL: Final = Url(
    "a URL such as s3://bucket/prefix or file:///directory, or empty",
    re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://.*)?", re.DOTALL),
)
METADATA_URL: Final = Url("etcd://host:2379,host:2379/prefix, or empty", re.compile(".*", re.DOTALL))
"""Settings parses it, with an error that does not repeat a password."""
JWKS_URL: Final = Url("a URL with http or https, or empty", _ENDPOINT)
TRACES_URL: Final = Url("a URL with http or https, such as http://127.0.0.1:4318/v1/traces, or empty", _ENDPOINT)
OPTIONAL_PATH: Final = OrEmpty(PathKind())
HOST: Final = Text("a host name or an IP address", re.compile(r"[A-Za-z0-9._:%-]{1,255}"))
HOSTS: Final = ListOf(
    "host names and IP addresses with commas between them, *, or empty",
    Text("", re.compile(r"[A-Za-z0-9._:%-]{1,255}|\*")).read,
)
ORIGINS: Final = ListOf(
    "origins such as https://example.com, with commas between them, or empty",
    Text("", re.compile(r"https?://[A-Za-z0-9.\[\]:_-]{1,255}")).read,
)
PRINCIPALS: Final = ListOf(
    "principals such as user:admin, with commas between them, or empty",
    Text("", re.compile(r"(user|service_account):[^\s:/,][^\s,]{0,254}")).read,
)
CLIENT_CERTIFICATES_OR_EMPTY: Final = Text(
    "one of off, optional, required, or empty", re.compile(r"(off|optional|required)?")
)
NETWORKS: Final = ListOf("networks such as 10.0.0.0/8, with commas between them, or empty", ip_network)
RULES: Final = ListOf(
    "rules such as 'subject CN=([^,]+) => user:{1}', with ; between them, or empty",
    Text("", re.compile(".+")).read,
    "; ",
)
NODE_NAME: Final = Text(
    "up to 200 ASCII letters, digits, '.', '_' and '-', or empty",
    re.compile(r"[A-Za-z0-9._-]{0,200}"),
)
CLAIM: Final = Text("the name of a claim, or empty", re.compile(r"[!-~]{0,200}"))
CLAIM_VALUE: Final = Text("text without white space, or empty", re.compile(r"\S{0,1000}"))
USER_NAME: Final = Text("up to 200 characters, or empty", re.compile(r"[^\x00-\x1f]{0,200}"))
ADDRESS: Final = Text(
    "host:port with a port from 1 to 65535, or empty",
    re.compile(
        r"(([A-Za-z0-9._-]{1,255}|\[[A-Za-z0-9:.%]+\])"
        r":([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
    ),
)
MAY_HOLD_SECRETS: Final = (Secret, OptionsKind, WebhooksKind, Url)
"""Kinds whose values appear in no error and no representation; what `show` returns of them is safe."""


def show_url(url: str) -> str:
    """Return a URL without what may be credentials: a user, a password, the values of parameters (but for `prefix`)."""
    return _FRAGMENT.sub("#***", _PARAMETER.sub(r"\1\2***", _USER.sub(r"\1***@", url)))
