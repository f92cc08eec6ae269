"""Tells systemd how the daemon is: sd_notify(3) datagrams over one socket, or nothing when there is none.

Invariant: a failing notification is logged once and never disturbs the daemon.
"""

from __future__ import annotations

import logging
import socket
import time

_LOG = logging.getLogger("sipd.notify")


class Notifier:
    """Sends states to NOTIFY_SOCKET; owned by the event loop's thread. Never blocks."""

    def __init__(self, socket_path: str | None) -> None:
        self._address = _address(socket_path)
        self._has_failed = False

    def ready(self, status: str) -> None:
        """The port is bound and the model is verified (also ends a reload)."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={_one_line(status)}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it. The clock value is what Type=notify-reload compares."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """The daemon drains."""
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def watchdog(self) -> None:
        """The engine made progress since the last call."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Asks for `seconds` more before the start or the stop counts as failed."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, state: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                _LOG.warning("cannot notify systemd at %r: %s", self._address, error)
            self._has_failed = True


def _address(socket_path: str | None) -> str | bytes | None:
    """Returns the address for sendto: '@name' is an abstract socket, which starts with NUL."""
    if not socket_path:
        return None
    if socket_path.startswith("@"):
        return b"\0" + socket_path[1:].encode()
    return socket_path if socket_path.startswith("/") else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
