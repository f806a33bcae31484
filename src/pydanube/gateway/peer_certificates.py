"""The certificate that a client has proven to hold, as each listener knows it; None if it showed none.

TLS has checked its signature, its dates and its authority before a listener sees the client.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from pydanube.core.identity import PeerCertificate
from pydanube.runtime.certificates import Certificate, read_certificate, read_pem
from pydanube.runtime.network import FramedConnection


def of_connection(connection: FramedConnection) -> PeerCertificate | None:
    """Return the certificate of a native client. Raises Invalid if it cannot be read."""
    der = connection.peer_certificate
    return None if der is None else _described(read_certificate(der))


def of_transport(transport: asyncio.BaseTransport) -> PeerCertificate | None:
    """Return the certificate of an HTTP or WebSocket client, by its connection's transport. Raises Invalid."""
    encrypted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    der = None if encrypted is None else encrypted.getpeercert(binary_form=True)
    return None if der is None else _described(read_certificate(der))


def of_call(context: Any) -> PeerCertificate | None:
    """Return the certificate of the client of a gRPC call, by the call's context. Raises Invalid."""
    pem = context.auth_context().get("x509_pem_cert")
    return _described(read_pem(pem[0])[0]) if pem else None


def _described(certificate: Certificate) -> PeerCertificate:
    return PeerCertificate(certificate.subject, certificate.names, certificate.expires_at_us)
