"""Tells systemd how far this process is, by the protocol of sd_notify: one datagram to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket

from .telemetry import get_logger

log = get_logger(__name__)


def notify(state: str) -> None:
    """Send a state such as "READY=1"; do nothing where no service manager asked for it.

    A failure is logged: the process works without its manager, which gives up by itself.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        log.warning("service_manager.not_notified", state=state, error=str(error))
