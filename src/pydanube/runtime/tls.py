"""TLS of listeners and clients: which files, which versions, which checks.

```
 ServerTls (settings) ─► ServerCertificates ─► a context for every new connection
                           ▲ run(), reload()      the newest pair of files that was good
```

Listeners speak TLS 1.2 and 1.3. Certificates are read again when the content of their files has changed; connections
that are open go on with the certificate they began with. A pair that cannot be used leaves the one before in use.

Invariants
    a context is made only of a certificate and a key that belong together, of files that did not change meanwhile
    a client's context checks certificate and name, unless its insecure_skip_verify is on
"""

from __future__ import annotations

import asyncio
import ssl
import stat
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydanube.model.errors import DanubeError, Invalid, Refused
from pydanube.model.settings.words import OFF, REQUIRED

from .certificates import Certificate, read_pem
from .clock import MICROSECONDS, Clock
from .telemetry import get_logger

log = get_logger(__name__)

PEM_BYTES_MAX: Final = 1024 * 1024
"""The largest file of certificates or of a key."""

EXPIRY_WARNING_S: Final = 7 * 24 * 3600
"""A certificate that ends within this time is warned of when it is read."""

_READ_AGAIN: Final = 3
"""How often files are read again that change while they are read."""

_SESSION_ID: Final = b"danube"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The files of a listener, PEM, and what it asks of its clients."""

    cert_file: Path
    """The certificate of the broker, then those of the authorities between it and the root."""
    key_file: Path
    client_ca_file: Path | None = None
    """The authorities that certificates of clients must come from; needed unless `client_certificates` is off."""
    client_certificates: str = OFF
    allow_unsafe_key_mode: bool = False
    """Whether the key may be readable for other users."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client checks servers, and what it shows them. Picklable: it names files, not their contents."""

    ca_file: str = ""
    """The authorities that certificates of servers must come from, PEM; empty: those of the system."""
    cert_file: str = ""
    key_file: str = ""
    """The certificate and key of the client, PEM; empty: none is shown."""
    insecure_skip_verify: bool = False
    """Whether any server is believed, whatever its certificate says."""

    def arguments(self) -> dict[str, Any]:
        """Return these values as `pydanube.connect` takes them."""
        return {f"tls_{one.name}": getattr(self, one.name) for one in fields(self)}


NO_FILES: Final = ClientTls()
"""A client that trusts the authorities of the system and shows no certificate."""


class PemFiles(NamedTuple):
    """The contents of the files of a ServerTls; `client_ca` is empty without one."""

    certificate: bytes
    key: bytes
    client_ca: bytes


class Loaded(NamedTuple):
    context: ssl.SSLContext
    http2_context: ssl.SSLContext
    pem: PemFiles
    certificate: Certificate


class ServerCertificates:
    """The certificate of one or several listeners, which is replaced when its files change."""

    def __init__(self, files: ServerTls, clock: Clock) -> None:
        """Read the files. Raises Refused, with the remedy, if the listener cannot use them."""
        self.files = files
        self._clock = clock
        _refuse_unsafe_mode(files)
        self._loaded = _load(files, clock)
        self._seen = self._loaded.pem
        """The newest content that was tried."""
        self._warn_of_expiry()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._loaded.context

    @property
    def http2_context(self) -> ssl.SSLContext:
        """The context for the next connection of a listener that speaks HTTP/2, and agrees so by ALPN."""
        return self._loaded.http2_context

    @property
    def pem(self) -> PemFiles:
        return self._loaded.pem

    @property
    def certificate(self) -> Certificate:
        return self._loaded.certificate

    async def run(self, interval_s: float) -> None:
        """Look for changed files at every interval, until cancelled."""
        while True:
            await self._clock.sleep(interval_s)
            await self.reload()

    async def reload(self) -> bool:
        """Read the files again if they have changed; return whether new ones are in use. A pair that cannot be used is
        logged, and the one before stays. Cancelled: the one before stays."""
        try:
            found = await asyncio.to_thread(self._read_changed)
        except DanubeError as error:
            log.error("tls.certificate_not_replaced", cert_file=str(self.files.cert_file), problem=error.message)
            return False
        if found is None:
            return False
        self._loaded = found
        log.info("tls.certificate_replaced", cert_file=str(self.files.cert_file), subject=found.certificate.subject)
        self._warn_of_expiry()
        return True

    def _read_changed(self) -> Loaded | None:
        """Return the contents of the files if they differ from those that were tried last. Raises Refused."""
        pem = _read_files(self.files)
        if pem == self._seen:
            return None
        self._seen = pem
        _refuse_unsafe_mode(self.files)
        return _load(self.files, self._clock)

    def _warn_of_expiry(self) -> None:
        left_us = self.certificate.expires_at_us - self._clock.now_us()
        if left_us < EXPIRY_WARNING_S * MICROSECONDS:
            hours = max(0, left_us // MICROSECONDS // 3600)
            log.warning("tls.certificate_expires", cert_file=str(self.files.cert_file), hours_left=hours)


class PeerContexts:
    """The context of the connections of a broker to others: it shows the certificate of its native listener."""

    def __init__(self, own: ServerCertificates, ca_file: Path | None) -> None:
        """`ca_file` has the authorities that the others' certificates must be signed by; None: those of clients, or
        else of the system. Raises Refused."""
        self._own = own
        self._ca_file = ca_file or own.files.client_ca_file
        self._pem = own.pem
        try:
            self._context = self._make()
        except Invalid as error:
            raise Refused(error.message) from None

    def newest(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        if self._own.pem is not self._pem:
            self._pem = self._own.pem
            try:
                self._context = self._make()
            except Invalid as error:  # the files have changed again: the next reload says what is wrong with them
                log.error("tls.peer_certificate_not_replaced", problem=error.message)
        return self._context

    def _make(self) -> ssl.SSLContext:
        files = self._own.files
        return client_context(ClientTls(str(self._ca_file or ""), str(files.cert_file), str(files.key_file)))


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return the context of a client. Raises Invalid, with the name of the file, if one cannot be used."""
    if bool(tls.cert_file) != bool(tls.key_file):
        raise Invalid("tls_cert_file and tls_key_file belong together: give both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file:
        _load_authorities(context, Path(tls.ca_file), "tls_ca_file")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, _no_password)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(_pair_problem(tls.cert_file, tls.key_file, error)) from None
    return context


# -- loading -----------------------------------------------------------------------------------------------------------


def _load(files: ServerTls, clock: Clock) -> Loaded:
    """Make a context of the files. Raises Refused."""
    for _ in range(_READ_AGAIN):
        pem = _read_files(files)
        context, http2_context = _server_context(files), _server_context(files)
        http2_context.set_alpn_protocols(["h2"])
        if _read_files(files) == pem:
            return Loaded(context, http2_context, pem, _own_certificate(files, pem, clock))
    raise Refused(f"{files.cert_file} and {files.key_file} change all the time: replace them in one step")


def _server_context(files: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0  # a resumed session would not show its client certificate again
    context.options |= ssl.OP_NO_TICKET
    try:
        context.load_cert_chain(files.cert_file, files.key_file, _no_password)
    except (OSError, ssl.SSLError) as error:
        raise Refused(_pair_problem(files.cert_file, files.key_file, error)) from None
    if files.client_certificates != OFF:
        if files.client_ca_file is None:
            raise Refused(
                f"client certificates are {files.client_certificates} and no authority is given for them: set "
                f"client_ca_file beside cert_file={files.cert_file}"
            )
        try:
            _load_authorities(context, files.client_ca_file, "client_ca_file")
        except Invalid as error:
            raise Refused(error.message) from None
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificates == REQUIRED else ssl.CERT_OPTIONAL
    return context


def _load_authorities(context: ssl.SSLContext, path: Path, what: str) -> None:
    """Trust the authorities in the file. Raises Invalid."""
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise Invalid(f"{what} {path} holds no certificate in PEM form: give the file of the authority") from None
    except OSError as error:
        raise Invalid(f"{what} {path} cannot be read: {error.strerror or error}") from None


def _own_certificate(files: ServerTls, pem: PemFiles, clock: Clock) -> Certificate:
    """Return the broker's certificate. Raises Refused if it is not valid now."""
    try:
        found = read_pem(pem.certificate)[0]
    except Invalid as error:
        raise Refused(f"cert_file {files.cert_file} cannot be used: {error.message}") from None
    now = clock.now_us()
    if found.expires_at_us <= now:
        raise Refused(f"the certificate in {files.cert_file} ({found.subject}) has expired: renew it")
    if found.begins_at_us > now:
        raise Refused(f"the certificate in {files.cert_file} ({found.subject}) is not valid yet: check the clock")
    return found


def _read_files(files: ServerTls) -> PemFiles:
    authorities = b"" if files.client_ca_file is None else _read_file(files.client_ca_file, "client_ca_file")
    return PemFiles(_read_file(files.cert_file, "cert_file"), _read_file(files.key_file, "key_file"), authorities)


def _read_file(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(
            f"{what} {path} cannot be read: {error.strerror or error}: correct the path or its mode"
        ) from None
    if len(content) > PEM_BYTES_MAX:
        raise Refused(f"{what} {path} is larger than {PEM_BYTES_MAX} bytes: it is no PEM file")
    return content


def _refuse_unsafe_mode(files: ServerTls) -> None:
    """Raise Refused if other users can read the key."""
    if files.allow_unsafe_key_mode:
        return
    try:
        mode = stat.S_IMODE(files.key_file.stat().st_mode)
    except OSError:
        return  # reading it will say why
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refused(
            f"key_file {files.key_file} has mode {mode:04o}, so that other users can use it: chmod 600 it, or set "
            f"tls.allow_unsafe_key_mode"
        )


def _pair_problem(cert_file: Path | str, key_file: Path | str, error: Exception) -> str:
    """Return why this pair cannot be used, and what to do."""
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key_file} does not belong to the certificate in {cert_file}: give the pair"
    if isinstance(error, ssl.SSLError):
        if reason in ("BAD_PASSWORD_READ", "BAD_DECRYPT"):
            return f"the key in {key_file} has a passphrase, which nobody could enter: store it without one, mode 0600"
        return f"{cert_file} and {key_file} are no certificate and key in PEM form, which TLS takes ({reason or error})"
    if isinstance(error, _HasPassphrase):
        return f"the key in {key_file} has a passphrase, which nobody could enter: store it without one, mode 0600"
    strerror = getattr(error, "strerror", None) or error
    return f"the certificate {cert_file} or the key {key_file} cannot be read: {strerror}: correct the path or its mode"


class _HasPassphrase(OSError):
    """The key is encrypted."""


def _no_password() -> str:
    raise _HasPassphrase
