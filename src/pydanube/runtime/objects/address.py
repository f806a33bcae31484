"""What names a store: its URL, its settings, and the secrets among them that nobody gets to see.

Credentials are settings, never part of a URL: a URL is shown and logged. `Secrets` knows every secret value that a
store was opened with, and takes it out of whatever text another library would have us repeat.

Invariants
    a URL with a user, a password or an unknown parameter is refused, and the refusal does not repeat it
    a setting that nobody reads is refused by its name
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydanube.model.errors import Invalid

from .store import check_key

SECRET_CHARACTERS_MIN: Final = 4
"""Shorter values are left in messages: taking out every `a` would hide the message and no secret."""

MESSAGE_CHARACTERS_MAX: Final = 400
"""Of another library's message; S3 answers with whole documents."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store's URL in its parts: `scheme://host:port/path?name=value`. `path` has no slash at either end."""

    scheme: str
    host: str
    port: int | None
    path: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> Self:
        scheme, separator, _ = url.partition("://")
        if not separator or not scheme:
            raise Invalid("a store is named by a URL such as file:///var/lib/objects or s3://bucket/prefix")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Invalid(f"the URL of the {scheme} store is not valid: check its host and port") from None
        if parts.username is not None or parts.password is not None or "@" in parts.netloc:
            raise Invalid(f"the URL of the {scheme} store holds credentials, and URLs are shown: give them as settings")
        if parts.fragment:
            raise Invalid(f"the URL of the {scheme} store has a '#', which means nothing here: write it as %23")
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(scheme.lower(), parts.hostname or "", port, unquote(parts.path).strip("/"), parameters)

    def expect(self, parameters: Iterable[str] = (), *, path: bool = True, host: bool = True) -> None:
        """Refuse what this kind of store has no use for."""
        known = set(parameters)
        for name in self.parameters:
            if name not in known:
                raise Invalid(f"a {self.scheme} URL has no parameter {name[:40]!r}: give it as a setting")
        if not host and self.host:
            raise Invalid(f"a {self.scheme} URL has no host: write {self.scheme}:///...")
        if not path and self.path:
            raise Invalid(f"a {self.scheme} URL ends after the host")

    @property
    def shown(self) -> str:
        """The URL again; nothing in it is secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        query = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in self.parameters.items())
        return f"{self.scheme}://{host}{port}/{quote(self.path)}".rstrip("/") + (f"?{query}" if query else "")

    def prefix(self) -> str:
        """The path as the beginning of every key, or empty."""
        return check_key(self.path) if self.path else ""


class Secrets:
    """Values that are shown to nobody."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        long_enough = {value for value in values if len(value) >= SECRET_CHARACTERS_MIN}
        encoded = {quote(value, safe="") for value in long_enough}
        self._values = sorted(long_enough | encoded, key=len, reverse=True)

    def scrub(self, text: object) -> str:
        """One short line without secrets."""
        line = " ".join(str(text).split())
        for value in self._values:
            line = line.replace(value, "***")
        return line if len(line) <= MESSAGE_CHARACTERS_MAX else f"{line[:MESSAGE_CHARACTERS_MAX]}..."


class StoreOptions:
    """The settings a store is opened with. What was not asked for when `done` is called is refused by name."""

    def __init__(self, scheme: str, given: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._given = dict(given)
        self._known: list[str] = []
        self._secrets: list[str] = []
        for name, value in self._given.items():
            if not isinstance(value, str):
                raise Invalid(f"setting {name!r} of the {scheme} store is not text")

    @property
    def secrets(self) -> Secrets:
        return Secrets(self._secrets)

    def text(self, name: str, default: str = "") -> str:
        self._known.append(name)
        return self._given.pop(name, default)

    def secret(self, name: str) -> str:
        value = self.text(name)
        self._secrets.append(value)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise Invalid(f"setting {name!r} of the {self._scheme} store is either true or false")
        return value == "true"

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name, str(default))
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0.01 <= seconds <= 3600:
            raise Invalid(f"setting {name!r} of the {self._scheme} store is a number of seconds, 0.01 to 3600")
        return seconds

    def done(self) -> None:
        if self._given:
            known = ", ".join(self._known) or "none"
            raise Invalid(f"the {self._scheme} store has no setting {min(self._given)!r}; it has: {known}")
