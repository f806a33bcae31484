"""Makes the authentication of a broker from its settings, and refuses at the start what would not be safe.

Every refusal names the setting and the remedy, and none repeats a secret.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pydanube.broker.security.authentication import CLUSTER_TOKEN_BYTES_MIN, AcceptedCredentials, Authentication
from pydanube.broker.security.certificate_rules import CertificateRule
from pydanube.broker.security.jwks import FILE_INTERVAL_S, Jwks, JwksFile, JwksUrl
from pydanube.broker.security.security_store import SecurityStore
from pydanube.broker.security.tokens import SECRET_BYTES_MIN, check_installed
from pydanube.model.addresses import is_loopback
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.limits import TOKEN_BYTES_MAX
from pydanube.model.security import BROKER_TYPE
from pydanube.model.settings.sections import AuthSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger
from pydanube.settings import Settings

log = get_logger(__name__)

_READABLE_FOR_OTHERS: Final = 0o077


def check_settings(settings: Settings) -> None:
    """Raise Refused or Invalid if authentication is on and its settings are not safe, or if other users can use the key
    that is shown to etcd. Called before anything is opened."""
    if settings.metadata.key_file is not None and not settings.tls.allow_unsafe_key_mode:
        _refuse_readable("metadata.key_file=", settings.metadata.key_file, "tls.allow_unsafe_key_mode")
    if settings.auth.enabled:
        refuse_plaintext(settings)
        _accepted(settings)
        if not settings.auth.allow_readable_files:
            _refuse_readable_files(settings)
        if is_super_user_by_default(settings):
            log.warning(
                "auth.super_user_not_named",
                super_users=", ".join(settings.auth.super_users),
                advice="whoever gets a JWT or a certificate with this name may do everything: set auth.super_users",
            )
    elif unused := unused_credentials(settings.auth):
        log.warning(
            "auth.not_enabled",
            settings=", ".join(unused),
            advice="everybody may do everything, because auth.enabled is false: set it, or remove these settings",
        )


def is_super_user_by_default(settings: Settings) -> bool:
    """Return whether there is a super user that the settings do not name, although an identity provider or an authority
    of certificates decides who has its name."""
    auth = settings.auth
    others = (auth.jwks_file, auth.jwks_url, auth.secret, auth.secret_file, auth.certificate_rules)
    return bool(auth.super_users) and "auth.super_users" not in settings.sources and any(others)


def unused_credentials(auth: AuthSettings) -> list[str]:
    """Return which settings say what credentials are accepted. They have no effect while authentication is off."""
    names = (
        "secret",
        "secret_file",
        "jwks_file",
        "jwks_url",
        "certificate_rules",
        "cluster_token",
        "cluster_token_file",
    )
    return [f"auth.{name}" for name in names if getattr(auth, name)]


def refuse_plaintext(settings: Settings) -> None:
    """Raise Refused if credentials would cross a network without encryption."""
    host = settings.server.host
    if settings.auth.allow_plaintext or is_loopback(host) or _is_encrypted(settings):
        return
    raise Refused(
        f"authentication on {host} without TLS would show every key and token to the network: configure TLS for every "
        f"listener, listen on 127.0.0.1, or set auth.allow_plaintext if something else encrypts the connections"
    )


def _is_encrypted(settings: Settings) -> bool:
    """Return whether every listener that is on has TLS."""
    listeners = (
        (settings.tls_native, True),
        (settings.tls_grpc, settings.grpc.data),
        (settings.tls_admin, settings.grpc.admin),
        (settings.tls_http, settings.server.http),
    )
    return all(settings.listener_tls(one) is not None for one, is_on in listeners if is_on)


async def open_authentication(settings: Settings, access: SecurityStore, clock: Clock) -> Authentication:
    """Return the authenticator of a broker, with the keys of JWTs read. A JWKS at a URL may be away for now."""
    accepted, jwks = await asyncio.to_thread(_accepted, settings), _jwks(settings.auth, clock)
    authentication = Authentication(settings.auth, accepted, lambda: access.keys, jwks, clock)
    if jwks is not None:
        try:
            await jwks.load()
        except DanubeError as error:
            if settings.auth.jwks_file is not None:
                raise Refused(f"auth.jwks_file: {error.message}") from None
            log.warning("auth.jwks_not_read", error=error.message)
    return authentication


def cluster_token(auth: AuthSettings) -> str:
    """Return what this broker shows to the others of its cluster; empty: nothing. Raises Refused."""
    token = _secret(auth.cluster_token, auth.cluster_token_file, "auth.cluster_token", auth.allow_readable_files)
    if token and not (CLUSTER_TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX and _is_token(token)):
        raise Refused(
            f"auth.cluster_token must be {CLUSTER_TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable characters without "
            f"blanks, such as `openssl rand -hex 32` makes"
        )
    if token.startswith("dnb_"):
        raise Refused("auth.cluster_token must not be an API key: make one with `openssl rand -hex 32`")
    return token


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _accepted(settings: Settings) -> AcceptedCredentials:
    auth = settings.auth
    rules = tuple(CertificateRule.parse(one) for one in auth.certificate_rules)
    token = cluster_token(auth)
    if settings.metadata.url and not token and not any(one.type == BROKER_TYPE for one in rules):
        raise Refused(
            "the brokers of a cluster must prove to each other who they are: set auth.cluster_token_file to the same "
            "secret on each of them, or an auth.certificate_rules with a principal of the type broker"
        )
    return AcceptedCredentials(_token_secret(auth), rules, token)


def _token_secret(auth: AuthSettings) -> bytes:
    """Return the secret of Danube's tokens; empty: there is none. Raises Refused if JWTs cannot be checked safely."""
    secret = _secret(auth.secret, auth.secret_file, "auth.secret", auth.allow_readable_files).encode()
    has_jwks = auth.jwks_file is not None or bool(auth.jwks_url)
    if not secret and not has_jwks:
        return b""
    check_installed()
    if auth.jwks_file is not None and auth.jwks_url:
        raise Refused("auth.jwks_file and auth.jwks_url are both set: choose one")
    if has_jwks and not (auth.issuer and auth.audience):
        raise Refused(
            "a JWKS needs auth.issuer and auth.audience: without them every token that the identity provider makes "
            "for any application would be accepted"
        )
    if secret and len(secret) < SECRET_BYTES_MIN:
        raise Refused(f"auth.secret has fewer than {SECRET_BYTES_MIN} bytes: use `openssl rand -hex 32`, for example")
    return secret


def _jwks(auth: AuthSettings, clock: Clock) -> Jwks | None:
    if auth.jwks_file is not None:
        return Jwks(JwksFile(auth.jwks_file), clock, FILE_INTERVAL_S, auth.jwks_stale_s)
    if auth.jwks_url:
        fetch = JwksUrl(auth.jwks_url, auth.jwks_ca_file, auth.jwks_allow_plain)
        return Jwks(fetch, clock, auth.jwks_refresh_s, auth.jwks_stale_s)
    return None


def _secret(given: str, file: Path | None, name: str, may_be_readable: bool) -> str:
    """Return a secret of the settings or of its file; empty: there is none. Raises Refused."""
    if given and file is not None:
        raise Refused(f"{name} and {name}_file are both set: choose one")
    if file is None:
        return given
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Refused(f"{name}_file={file} cannot be read: {reason}") from None
    if not may_be_readable:
        _refuse_readable(f"{name}_file=", file, "auth.allow_readable_files")
    if not content:
        raise Refused(f"{name}_file={file} is empty")
    return content


def _refuse_readable_files(settings: Settings) -> None:
    """Raise Refused if other users can read the secrets of webhooks, or a configuration file that holds secrets."""
    for webhook in settings.http.webhooks:
        if webhook.secret_file:
            _refuse_readable(
                f"http.webhooks.{webhook.name}.secret_file=", Path(webhook.secret_file), "auth.allow_readable_files"
            )
    for key, file in settings.secrets_in_files():
        _refuse_readable(f"the file with {key}, ", file, "auth.allow_readable_files")


def _refuse_readable(what: str, file: Path, allowing: str) -> None:
    """Raise Refused if other users can use a file with a secret. `allowing`: the setting that allows it."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise Refused(f"{what}{file} cannot be read: {error.strerror}") from None
    if mode & _READABLE_FOR_OTHERS:
        raise Refused(
            f"{what}{file} can be used by other users (mode {mode & 0o777:o}): run `chmod 600 {file}`, or set "
            f"{allowing}"
        )
