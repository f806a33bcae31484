"""Every setting: its name, its default, its allowed values, and where its value came from.

A setting is `section.key`: in a TOML file the key of a table, in the environment `DANUBE_SECTION_KEY`. The command line
overrides the environment, the environment the file, and the file the default.

Invariants
    every value in a Settings, and every relation between its values, is allowed
    `load` reads the text that `describe` shows for a value as the same value
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self, cast

from .metadata.etcd.place import EtcdPlace, TlsFiles, parse_members
from .model.errors import Invalid
from .model.settings.kinds import MAY_HOLD_SECRETS
from .model.settings.sections import (
    Section,
    Sections,
    TlsListenerSettings,
    default_of,
    kind_of,
    read_setting,
)
from .model.settings.words import OFF
from .model.text import nearest
from .runtime.tls import ServerTls

_DEFAULT: Final = "default"
_FILE_SOURCE: Final = "file "
"""What the source of a value of a file begins with."""


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One setting as users see it: `load` reads `value` and `default` as the same values."""

    key: str
    env: str
    type: str
    """The allowed values, in words."""
    default: str
    value: str
    source: str
    """The source of the value: "default", "file danube.toml", "environment DANUBE_SERVER_PORT", "command line"."""
    help: str


@dataclass(frozen=True, slots=True)
class Settings(Sections):
    """All settings of a broker, checked."""

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The source of each value that is not a default, by key."""

    def __post_init__(self) -> None:
        for one in _SECTIONS:
            object.__setattr__(self, one.section, getattr(self, one.section).checked())
        problems = [*self._unordered(), *self._narrow_log(), *self._shared_ports(), *self._wrong_metadata()]
        problems += self._wrong_tls()
        if problems:
            raise Invalid("; ".join(problems))

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Load settings from a file (None: no file), the environment and the command line.

        `overrides` are the values of the command line by dotted key; None means not given. Raises Invalid; its message
        names every wrong key with its value, the allowed values, and a key that was probably meant.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        problems: list[str] = []
        given = (
            *_from_file(path, problems),
            *_from_environ(environ or {}, problems),
            *_from_overrides(overrides or {}),
        )
        for key, value, source in given:
            one = _KNOWN.get(key)
            try:
                if one is None:
                    raise Invalid(f"{source}: {_unknown(key)}")
                values[key] = read_setting(key, kind_of(one), value, source)
                sources[key] = source
            except Invalid as problem:
                problems.append(problem.message)
        if problems:
            raise Invalid("; ".join(problems))
        sections = {
            section.section: section(**{one.name: values[key] for key, one in section.settings() if key in values})
            for section in _SECTIONS
        }
        return cls(**sections, sources=sources)  # type: ignore[arg-type]  # each section is under its own name

    def describe(self) -> list[SettingDescription]:
        """Describe every setting, in the order of the documentation."""
        return [
            SettingDescription(
                key=key,
                env=environment_name(key),
                type=kind_of(one).allowed,
                default=kind_of(one).show(kind_of(one).read(default_of(one))),
                value=kind_of(one).show(getattr(getattr(self, section.section), one.name)),
                source=self.sources.get(key, _DEFAULT),
                help=one.metadata["meaning"],
            )
            for section in _SECTIONS
            for key, one in section.settings()
        ]

    def secrets_in_files(self) -> Iterator[tuple[str, Path]]:
        """Yield every secret that a configuration file gives, by its key, and the file. Options of stores and webhooks
        count if a part of them is hidden."""
        for key, one in _KNOWN.items():
            source = self.sources.get(key, "")
            is_secret = isinstance(kind_of(one), MAY_HOLD_SECRETS) and "***" in self._shown(key)
            if is_secret and source.startswith(_FILE_SOURCE):
                yield key, Path(source.removeprefix(_FILE_SOURCE))

    @property
    def has_audit(self) -> bool:
        """Whether audit events are recorded."""
        return self.auth.enabled if self.audit.enabled is None else self.audit.enabled

    @property
    def audit_path(self) -> Path:
        return self.audit.file or self.server.data_dir / "audit.log"

    @property
    def log_directory(self) -> Path:
        return self.log.directory or self.server.data_dir / "wal"

    @property
    def store_url(self) -> str:
        return self.storage.url or (self.server.data_dir.absolute() / "objects").as_uri()

    @property
    def metadata_path(self) -> Path:
        """The metadata database, where the metadata is not in etcd."""
        return self.metadata.path or self.server.data_dir / "metadata.db"

    @property
    def metadata_place(self) -> Path | EtcdPlace:
        given = self.metadata
        if not given.url:
            return self.metadata_path
        has_tls = given.tls or given.ca_file is not None or given.cert_file is not None
        tls = TlsFiles(given.ca_file, given.cert_file, given.key_file) if has_tls else None
        members, prefix = parse_members(given.url)
        return EtcdPlace(members, prefix, tls, given.user, given.password, given.timeout_ms / 1000)

    def listener_tls(self, listener: TlsListenerSettings) -> ServerTls | None:
        """Return the files of a listener, of its own section and of `tls`; None if it has no TLS."""
        pair = listener if listener.cert_file is not None else self.tls
        if not listener.enabled or pair.cert_file is None or pair.key_file is None:
            return None
        return ServerTls(
            pair.cert_file,
            pair.key_file,
            listener.client_ca_file or self.tls.client_ca_file,
            listener.client_certificates or self.tls.client_certificates,
            self.tls.allow_unsafe_key_mode,
        )

    def _unordered(self) -> Iterator[str]:
        for smaller, larger in _NOT_LARGER:
            low, high = self._shown(smaller), self._shown(larger)
            if self._value(smaller) > self._value(larger):
                yield f"{smaller}={low} is larger than {larger}={high}: make {smaller} at most {larger}"

    def _narrow_log(self) -> Iterator[str]:
        """Yield a problem if the log may not hold two files: the file being written cannot be released, so such a log
        would stay full for ever."""
        limit, file_bytes = self.storage.log_bytes_max, self.log.file_bytes
        if limit and limit < 2 * file_bytes:
            yield (
                f"storage.log_bytes_max={self._shown('storage.log_bytes_max')} has no room for two files of "
                f"log.file_bytes={self._shown('log.file_bytes')}: raise it to twice that, lower log.file_bytes, or set "
                f"it to 0 for no limit"
            )

    def _shared_ports(self) -> Iterator[str]:
        taken: dict[int, str] = {}
        for key in ("server.port", "server.grpc_port", "server.admin_port", "server.http_port"):
            port = self._value(key)
            if port and port in taken:
                yield f"{key}={port} is {taken[port]} too: give every listener a port of its own, or 0 for a free one"
            taken.setdefault(port, key)

    def _wrong_metadata(self) -> Iterator[str]:
        given = self.metadata
        if (given.cert_file is None) != (given.key_file is None):
            yield "metadata.cert_file and metadata.key_file belong together: give both or none"
        try:
            if given.url:
                parse_members(given.url)
        except Invalid as problem:
            yield problem.message

    def _wrong_tls(self) -> Iterator[str]:
        listeners = (self.tls_native, self.tls_grpc, self.tls_admin, self.tls_http)
        for one in (self.tls, *listeners):
            if (one.cert_file is None) != (one.key_file is None):
                yield f"{one.section}.cert_file and {one.section}.key_file belong together: give both or none"
        unsigned = [one.section for one in listeners if _lacks_authority(self.listener_tls(one))]
        if unsigned:
            yield (
                f"{', '.join(unsigned)}: client certificates are asked for, and nothing says who signs them: set "
                f"tls.client_ca_file"
            )

    def _value(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def _shown(self, key: str) -> str:
        return kind_of(_KNOWN[key]).show(self._value(key))


def _lacks_authority(files: ServerTls | None) -> bool:
    return files is not None and files.client_certificates != OFF and files.client_ca_file is None


def environment_name(key: str) -> str:
    """`log.file_bytes` is `DANUBE_LOG_FILE_BYTES`."""
    return _ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


_NOT_LARGER: Final = (
    ("log.group_bytes_max", "log.file_bytes"),
    ("limits.connections_per_address_max", "limits.connections_max"),
    ("limits.message_bytes_max", "limits.pending_publish_bytes_max"),
    ("limits.publish_window_bytes", "limits.pending_publish_bytes_max"),
    ("slices.slice_bytes", "slices.unlisted_bytes_max"),
    ("slices.waiting_bytes_max", "slices.unlisted_bytes_max"),
)
"""Relations between settings: the first must not be larger than the second."""

_ENVIRONMENT_PREFIX: Final = "DANUBE_"
_NO_SETTINGS: Final = {
    "DANUBE_STORAGE_TOKEN",
    "DANUBE_TLS_CA_FILE",
    "DANUBE_TLS_CLIENT_CERT_FILE",
    "DANUBE_TLS_CLIENT_KEY_FILE",
    "DANUBE_TLS_INSECURE_SKIP_VERIFY",
}
"""Variables that are named like a setting but are read by a command itself (`danube storage serve`), or by clients."""
_SECTIONS: Final[tuple[type[Section], ...]] = tuple(
    cast(type[Section], one.default_factory) for one in fields(Sections)
)


_KNOWN: Final[dict[str, Field[Any]]] = {key: one for section in _SECTIONS for key, one in section.settings()}
_BY_ENVIRONMENT: Final = {environment_name(key): key for key in _KNOWN}
_SECTION_NAMES: Final = tuple(section.section for section in _SECTIONS)
assert len(_BY_ENVIRONMENT) == len(_KNOWN), "two settings share a variable"


def _from_file(path: Path | None, problems: list[str]) -> Iterator[tuple[str, object, str]]:
    """Yield the dotted key, value and source of every setting in the file."""
    if path is None:
        return
    source = f"{_FILE_SOURCE}{path}"
    for name, table in _parse(path).items():
        if name not in _SECTION_NAMES:
            problems.append(f"{source}: {_unknown_section(name)}")
        elif not isinstance(table, dict):
            problems.append(f"{source}: {name} is not a table: write [{name}] and its keys below it")
        else:
            for key, value in table.items():
                yield f"{name}.{key}", value, source


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"configuration file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"configuration file {path} is not valid TOML: {error}") from None


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> Iterator[tuple[str, object, str]]:
    """Yield the dotted key, value and source of every setting in the environment.

    Variables named after a section must be known settings; others, such as DANUBE_URL, are ignored. An empty variable
    counts as not set: some shells and container files cannot unset one.
    """
    ours = tuple(f"{_ENVIRONMENT_PREFIX}{name.upper()}_" for name in _SECTION_NAMES)
    for variable in sorted(name for name, value in environ.items() if value != ""):
        if variable in _BY_ENVIRONMENT:
            yield _BY_ENVIRONMENT[variable], environ[variable], f"environment {variable}"
        elif variable.startswith(ours) and variable not in _NO_SETTINGS:
            near = nearest(variable, _BY_ENVIRONMENT)
            hint = f"did you mean {near}?" if near else "`danube config show` lists them all"
            problems.append(f"environment: {variable} is not a known setting: {hint}")  # its value may be a secret


def _from_overrides(overrides: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    return ((key, value, "command line") for key, value in overrides.items() if value is not None)


def _unknown(key: str) -> str:
    section, _, name = key.partition(".")
    if section not in _SECTION_NAMES:
        return _unknown_section(section)
    here = [known.partition(".")[2] for known in _KNOWN if known.startswith(f"{section}.")]
    elsewhere = next((known for known in _KNOWN if known.endswith(f".{name}")), "")
    near = elsewhere or (f"{section}.{meant}" if (meant := nearest(name, here)) else "")
    hint = f"did you mean {near}?" if near else f"[{section}] has {', '.join(here)}"
    return f"{key} is not a known setting: {hint}"


def _unknown_section(name: str) -> str:
    near = nearest(name, _SECTION_NAMES)
    homes = [known for known in _KNOWN if known.endswith(f".{name}")]
    if homes:
        return f"{name} is not a known section: did you mean {homes[0]}?"
    hint = f"did you mean [{near}]?" if near else f"there are {', '.join(_SECTION_NAMES)}"
    return f"{name} is not a known section: {hint}"
