"""Ways out of the job for an alert: an address that takes a POST, or a program.

A channel never follows a redirect, never waits longer than its deadline, however slowly it is
answered, and never takes anything but a clear yes for a delivery. `Line` holds any other channel to
that as well.
"""

from __future__ import annotations

import http.client
import logging
import os
import signal
import socket
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from spiketriage.train.recording.alert_bodies import Body, encoded, plain

DELIVER_WITHIN_S = 10.0
# What a channel is given beyond its own deadline before it counts as hung.
GRACE_S = 2.0
_LOG = logging.getLogger(__name__)


class Channel(Protocol):
    """A way out."""

    def deliver(self, message: bytes) -> bool:
        """Whether `message` (a JSON object) has arrived, within `DELIVER_WITHIN_S`.

        It may raise OSError, ValueError or http.client.HTTPException instead.
        """
        ...


class Line:
    """A channel and the thread that is with it: one that hangs is passed over, not waited for."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._thread: threading.Thread | None = None
        self._is_hung = False
        self._has_arrived = False

    def begin(self, message: bytes) -> None:
        """Start a delivery, unless the last one still hangs."""
        self._has_arrived = False
        self._is_hung = self._thread is not None and self._thread.is_alive()
        if self._is_hung:
            _LOG.warning("alert not delivered: %s still hangs", type(self._channel).__name__)
            return
        self._thread = threading.Thread(target=self._deliver, args=(message,), daemon=True)
        self._thread.start()

    def arrived(self, timeout_s: float) -> bool:
        """Whether the delivery was through, and with a yes, within `timeout_s` seconds."""
        if self._thread is None or self._is_hung:
            return False
        self._thread.join(max(0.0, timeout_s))
        return self._has_arrived

    def _deliver(self, message: bytes) -> None:
        name = type(self._channel).__name__
        try:
            self._has_arrived = self._channel.deliver(message)
            if not self._has_arrived:
                _LOG.warning("alert not delivered: %s did not take it", name)
        except (OSError, ValueError, http.client.HTTPException) as error:
            # Not the whole error: an address in it may hold a secret.
            status = getattr(error, "code", None) or getattr(error, "reason", None)
            _LOG.warning("alert not delivered: %s: %s %s", name, type(error).__name__, status or "")


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that takes the alert as a JSON POST and answers 2xx.

    `body` is one of `alert_bodies`. The address may hold a secret: it is never printed.
    """

    url: str = field(repr=False)
    body: Body = field(default=plain, repr=False)
    within_s: float = DELIVER_WITHIN_S

    def deliver(self, message: bytes) -> bool:
        """Post the message."""
        if not self.url.startswith(("http://", "https://")):
            return False
        request = _request(self.url, encoded(self.body, message))
        connections: list[http.client.HTTPConnection] = []
        opener = urllib.request.build_opener(
            _NoRedirect, _HTTPHandler(connections), _HTTPSHandler(connections)
        )
        is_late = threading.Event()
        deadline = threading.Timer(self.within_s, _cut, (connections, is_late))
        deadline.daemon = True
        deadline.start()
        try:
            with opener.open(request, timeout=self.within_s) as answer:
                # An answer that was cut reads like one that ended.
                return bool(200 <= answer.status < 300) and not is_late.is_set()
        finally:
            deadline.cancel()


@dataclass(frozen=True, slots=True)
class Command:
    """A program that takes the alert on its standard input and exits with 0, without a shell.

    Its own output is nobody's: a program that stays in the background must not hold it open. It may
    outlive the job, whose death it tells.
    """

    argv: Sequence[str]
    within_s: float = DELIVER_WITHIN_S

    def deliver(self, message: bytes) -> bool:
        """Run the program; with what it started, it is ended at the deadline."""
        with subprocess.Popen(
            list(self.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as program:
            try:
                program.communicate(message, timeout=self.within_s)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                return False
            return program.returncode == 0


def _request(url: str, data: bytes) -> urllib.request.Request:
    """The POST; a user and password in the address become a header, as clients do."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json"}
    if at:
        secret = urllib.parse.unquote(user).encode()
        headers["Authorization"] = f"Basic {b64encode(secret).decode()}"
    address = urllib.parse.urlunsplit(parts._replace(netloc=host))
    return urllib.request.Request(address, data=data, headers=headers, method="POST")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An alert goes where it was sent: what answers with another address has not taken it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _HTTPHandler(urllib.request.HTTPHandler):
    """Opens connections that the deadline knows."""

    def __init__(self, connections: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: urllib.request.Request) -> Any:
        """Open it."""
        return self.do_open(
            partial(_connection, http.client.HTTPConnection, self._connections), req
        )


class _HTTPSHandler(urllib.request.HTTPSHandler):
    """The same for TLS."""

    def __init__(self, connections: list[http.client.HTTPConnection]) -> None:
        super().__init__(context=ssl.create_default_context())
        self._connections = connections

    def https_open(self, req: urllib.request.Request) -> Any:
        """Open it."""
        secure = partial(http.client.HTTPSConnection, context=ssl.create_default_context())
        return self.do_open(partial(_connection, secure, self._connections), req)


def _connection(
    make: Callable[..., http.client.HTTPConnection],
    connections: list[http.client.HTTPConnection],
    host: str,
    **options: Any,
) -> http.client.HTTPConnection:
    connection = make(host, **options)
    connections.append(connection)
    return connection


def _cut(connections: Sequence[http.client.HTTPConnection], is_late: threading.Event) -> None:
    """Shut the sockets: whoever reads from one, a drop at a time, reads its end now."""
    is_late.set()
    for connection in connections:
        with suppress(OSError, AttributeError):  # closed meanwhile, or not connected yet
            connection.sock.shutdown(socket.SHUT_RDWR)
