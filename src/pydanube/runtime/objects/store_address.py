"""The address of a store: its URL, its settings, and the secrets among them.

Credentials are settings, never part of a URL: a URL is shown and logged. `Secrets` has every secret value that a store
was opened with, and removes them from messages of other libraries.

Invariants
    a URL with a user, a password or an unknown parameter is refused, and the error does not repeat it
    an unknown setting is refused, and the error names it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydanube.model.addresses import bracketed, host_port
from pydanube.model.errors import Invalid
from pydanube.model.text import Duration, Flag, Kind, did_you_mean

from .object_store import check_key

SECRET_CHARACTERS_MIN: Final = 4
"""Shorter values are not removed: without every `a`, a message is unreadable, and no secret is protected."""

MESSAGE_CHARACTERS_MAX: Final = 400
"""The most that is kept of another library's message; S3 answers with whole documents."""

_TIMEOUT: Final = Duration(0.01, 3600)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The parts of a store's URL `scheme://host:port/path?name=value`. `path` has no slash at either end."""

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
        """Raise Invalid for parts of the URL that this kind of store does not have."""
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
        """The URL as text; it contains no secret."""
        place = bracketed(self.host) if self.port is None else host_port(self.host, self.port)
        query = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in self.parameters.items())
        return f"{self.scheme}://{place}/{quote(self.path)}".rstrip("/") + (f"?{query}" if query else "")

    def prefix(self) -> str:
        """Return the path, checked as a prefix of keys; empty if there is none."""
        return check_key(self.path) if self.path else ""


class Secrets:
    """Secret values, which must not appear in messages."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        long_enough = {value for value in values if len(value) >= SECRET_CHARACTERS_MIN}
        encoded = {quote(value, safe="") for value in long_enough}
        self._values = sorted(long_enough | encoded, key=len, reverse=True)

    def scrub(self, text: object) -> str:
        """Return the text as one short line without secrets."""
        line = " ".join(str(text).split())
        for value in self._values:
            line = line.replace(value, "***")
        return line if len(line) <= MESSAGE_CHARACTERS_MAX else f"{line[:MESSAGE_CHARACTERS_MAX]}..."


class StoreOptions:
    """Reads the settings a store is opened with. `done` raises Invalid for a setting that was not read."""

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
        return self._read(name, Flag(), default)

    def seconds(self, name: str, default: float) -> float:
        return self._read(name, _TIMEOUT, default)

    def _read(self, name: str, kind: Kind[T], default: T) -> T:
        """The error does not show the value: it may be a secret in the wrong place."""
        is_given = name in self._given
        text = self.text(name)
        try:
            return kind.read(text) if is_given else default
        except ValueError:
            raise Invalid(f"setting {name!r} of the {self._scheme} store is not allowed: use {kind.allowed}") from None

    def done(self) -> None:
        if self._given:
            name = min(self._given)
            hint = did_you_mean(name, self._known, "it has:")
            raise Invalid(f"the {self._scheme} store has no setting {name!r}: {hint}")
