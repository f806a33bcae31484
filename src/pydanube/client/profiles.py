"""The file of profiles: where brokers are and which credentials they take, under names that programs and commands use.

```
 ~/.config/danube/profiles.toml         $XDG_CONFIG_HOME/danube, or $DANUBE_CONFIG_HOME

 current = "prod"

 [profiles."prod"]
 url = "danubes://broker.example:6655"
 token_file = "/run/secrets/danube"     or token, or api_key: the secret itself; or none of them
 tls_ca_file = "/etc/danube/ca.pem"     also tls_cert_file and tls_key_file; or none of them
 namespace = "shop"                     of topics that are named without one; without it: default
```

```
 which broker       an address, a profile that is named, DANUBE_URL, the profile of DANUBE_PROFILE, that in use
 as whom            credentials that are given, a profile that is named, DANUBE_TOKEN and the like, the same profile
```

The first that is there counts. What a profile holds goes to the broker of that profile only, unless a profile and an
address are named together: a token must not reach a broker that was not meant.

Invariants
    a file that other users can read is refused, and so is one with a key that is not known
    no secret is in a representation or an error
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydanube.client.connection.credentials import VARIABLES, check_token
from pydanube.client.connection.servers import parse_servers
from pydanube.model.errors import AlreadyExists, Invalid, NotFound, Refused
from pydanube.model.names import parse_namespace
from pydanube.runtime.environment import PROFILE_VARIABLE, URL_VARIABLE

T = TypeVar("T")

FILE_NAME: Final = "profiles.toml"
SECRETS: Final = ("token", "api_key")
CREDENTIALS: Final = ("token_file", *SECRETS)
TLS_FILES: Final = ("tls_ca_file", "tls_cert_file", "tls_key_file")
FILE_BYTES_MAX: Final = 4 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOR_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a cluster is, and how its commands show who they are."""

    url: str
    credentials: dict[str, str] = field(default_factory=dict, repr=False)
    """One of `token_file`, `token` and `api_key`, as `pydanube.connect` takes it; empty: none."""

    tls_files: dict[str, str] = field(default_factory=dict)
    """What connections to the broker use, by the names of `TLS_FILES`."""

    namespace: str = ""
    """The namespace of topics that are named without one; empty: `default`."""

    def credentials_for(self, named: str | None) -> dict[str, str]:
        """Return the credentials of this profile; none if only a profile that is `named` comes before the environment,
        which has some."""
        return self.credentials if named or not any(map(os.environ.get, VARIABLES)) else {}

    @property
    def how(self) -> str:
        """What the credentials are, without a secret."""
        name, value = next(iter(self.credentials.items()), ("", ""))
        return f"token file {value}" if name == "token_file" else {"token": "token", "api_key": "API key"}.get(name, "")


@dataclass(slots=True)
class Profiles:
    """All profiles of a user, and the one in use: it counts if nothing else is said."""

    path: Path
    by_name: dict[str, Profile] = field(default_factory=dict)
    current: str = ""

    @classmethod
    def load(cls) -> Profiles:
        """Read the file; without one there are no profiles. Raises Refused and Invalid."""
        path = profiles_path()
        text = _read_private(path)
        if text is None:
            return cls(path)
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # Its message may quote what is beside the mistake; the line is enough.
            where = re.search(r"line \d+", str(error))
            raise Invalid(
                f"{path} is not TOML{f', at {where[0]}' if where else ''}: correct it, or remove it"
            ) from None
        return cls._parse(path, content)

    @classmethod
    def _parse(cls, path: Path, content: dict[str, Any]) -> Profiles:
        unknown = sorted(set(content) - {"current", "profiles"})
        tables = content.get("profiles", {})
        if unknown or not isinstance(tables, dict) or not isinstance(content.get("current", ""), str):
            raise Invalid(f"{path} has {', '.join(unknown) or 'values of the wrong kind'}: correct it, or remove it")
        found = cls(path, {name: _parse_profile(path, name, one) for name, one in tables.items()})
        found.current = content.get("current", "")
        return found

    def get(self, name: str) -> Profile:
        """Return a profile. Raises NotFound."""
        if name not in self.by_name:
            there = ", ".join(sorted(self.by_name)) or "none"
            raise NotFound(
                f"there is no profile {name!r} (there are: {there}): 'danube profile add NAME --url URL' makes one"
            )
        return self.by_name[name]

    def add(self, name: str, profile: Profile, *, replace: bool) -> None:
        """Add a profile. Raises Invalid and AlreadyExists."""
        check_name(name)
        if name in self.by_name and not replace:
            raise AlreadyExists(f"there is a profile {name!r} already: add --replace, or choose another name")
        self.by_name[name] = profile

    def use(self, name: str) -> None:
        """Choose the profile that counts if nothing else is said. Raises NotFound."""
        self.get(name)
        self.current = name

    def remove(self, name: str) -> None:
        """Remove a profile. Raises NotFound."""
        self.get(name)
        del self.by_name[name]
        if self.current == name:
            self.current = ""

    def save(self) -> None:
        """Replace the file, which only its owner can read."""
        from pydanube.runtime.disk import OsDisk, replace_whole

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_whole(OsDisk(), self.path, self._as_toml().encode(), private=True)

    def _as_toml(self) -> str:
        lines = [f"current = {_quoted(self.current)}"] if self.current else []
        for name, profile in sorted(self.by_name.items()):
            lines += ["", f"[profiles.{_quoted(name)}]", f"url = {_quoted(profile.url)}"]
            named = {"namespace": profile.namespace} if profile.namespace else {}
            others = profile.credentials | profile.tls_files | named
            lines += [f"{key} = {_quoted(value)}" for key, value in others.items()]
        return "\n".join(lines).lstrip("\n") + "\n"


def choose_profile(named: str | None, url: str | None) -> Profile | None:
    """Return the profile that counts beside what is given; None if there is none, or if the broker is named without
    it. Raises NotFound, Refused and Invalid."""
    if named is None and (url is not None or os.environ.get(URL_VARIABLE)):
        return None
    profiles = Profiles.load()
    name = named or os.environ.get(PROFILE_VARIABLE) or profiles.current
    return profiles.get(name) if name else None


def with_tls_of_profile(given: Mapping[str, T], files: Mapping[str, str]) -> dict[str, T | str]:
    """Return options of TLS that are given, and files of a profile for the others. A certificate and its key come from
    one place."""
    if "tls_cert_file" in given or "tls_key_file" in given:
        files = {name: path for name, path in files.items() if name == "tls_ca_file"}
    return {**files, **given}


def profiles_path() -> Path:
    """Return where the file of profiles is, or would be."""
    if home := os.environ.get("DANUBE_CONFIG_HOME"):
        return Path(home) / FILE_NAME
    configuration = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configuration) if configuration else Path.home() / ".config") / "danube" / FILE_NAME


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no name of a profile: use up to 64 ASCII letters, digits, '.', '_' and '-'")
    return name


def _read_private(path: Path) -> str | None:
    """Return the text of a file that nobody else can read; None: there is no such file. Raises Refused and Invalid."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _FOR_OTHERS:
                raise Refused(
                    f"{path} holds credentials, and other users may use it (mode {mode & 0o777:o}): run "
                    f"'chmod 600 {path}', and replace credentials that others may have read"
                )
            content = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not text in UTF-8: correct it, or remove it") from None


def _parse_profile(path: Path, name: str, table: object) -> Profile:
    where = f"profile {check_name(name)!r} in {path}"
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise Invalid(f"{where} is not a table of texts: correct it, or remove it")
    credentials = {key: table[key] for key in CREDENTIALS if key in table}
    if unknown := sorted(set(table) - {"url", "namespace", *CREDENTIALS, *TLS_FILES}):
        raise Invalid(f"{where} has {', '.join(unknown)}, which no profile has: correct it, or remove it")
    if len(credentials) > 1:
        raise Invalid(f"{where} has {' and '.join(credentials)}: keep one of them")
    try:
        parse_servers(table.get("url", ""))
        namespace = parse_namespace(table["namespace"]) if "namespace" in table else ""
        for key in SECRETS:
            if key in credentials:
                credentials[key] = check_token(credentials[key])
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}") from None
    return Profile(table["url"], credentials, {key: table[key] for key in TLS_FILES if key in table}, namespace)


def _quoted(text: str) -> str:
    """Return text as a TOML string: JSON writes it the same way, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
