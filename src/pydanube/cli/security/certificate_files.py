"""Makes an authority and certificates signed by it, for development. Imports `cryptography`, which is an extra."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS: Final = 365

_Key = ec.EllipticCurvePrivateKey


def make_certificates(names: Iterable[str], now_us: int) -> dict[str, bytes]:
    """Return the files by name: ca, broker and client, each with its key. `names` are those of the broker."""
    now = datetime.fromtimestamp(now_us / 1_000_000, UTC)
    authority_key, authority_name = _key(), _name("danube development authority")
    authority = (
        _builder(authority_name, authority_name, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternative = x509.SubjectAlternativeName([_alternative(one) for one in dict.fromkeys(names)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    broker_key, client_key = _key(), _key()
    broker = (
        _leaf(_name("broker"), authority_name, authority_key, broker_key, now, usages)  # also to other brokers
        .add_extension(alternative, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    client = _leaf(_name("client"), authority_name, authority_key, client_key, now, usages[1:]).sign(
        authority_key, hashes.SHA256()
    )
    return {
        "ca.pem": _pem(authority),
        "ca-key.pem": _key_pem(authority_key),
        "broker.pem": _pem(broker),
        "broker-key.pem": _key_pem(broker_key),
        "client.pem": _pem(client),
        "client-key.pem": _key_pem(client_key),
    }


def _key() -> _Key:
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of other machines may be a little late
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _leaf(
    subject: x509.Name,
    issuer: x509.Name,
    issuer_key: _Key,
    key: _Key,
    now: datetime,
    usages: list[x509.ObjectIdentifier],
) -> x509.CertificateBuilder:
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        _builder(subject, issuer, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(by, critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
