"""An alert is delivered, or spooled and said so, whatever answers at the other end.

Each server here is a socket on the loopback that misbehaves in one way; none of them is a mock of
ours.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spiketriage.train.recording.alert_bodies import pagerduty, slack
from spiketriage.train.recording.alerts import Alert, Alerts, read_spool
from spiketriage.train.recording.channels import Command, Webhook

ALERT = Alert(
    severity="error",
    key="nonfinite/3",
    summary="rank 3: step 7 has a NaN & <Inf>: `w`",
    run="r1",
    rank=3,
    step=7,
    value=float("nan"),
    next_command="spiketriage triage r1",
)
MESSAGE = json.dumps({"key": "k", "summary": "s", "severity": "error"}).encode()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads each request whole and then does `answer`; with what it was sent."""
    taken: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                taken.append(whole_request(connection))
                answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook", taken
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)
    assert not thread.is_alive()


def whole_request(connection: socket.socket) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(4096)
    head, _, body = text.partition(b"\r\n\r\n")
    (length,) = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
    while len(body) < int(length.split(b":")[1]):
        body += connection.recv(4096)
    return head + b"\r\n\r\n" + body


def says(text: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(text)


def for_ever(start: bytes, piece: bytes, pause_s: float) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:  # until the other end shuts the socket
            connection.sendall(piece)
            time.sleep(pause_s)

    return answer


def silent(connection: socket.socket) -> None:
    connection.recv(1)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ANSWERS = {
    "ok": (says(OK), True),
    "accepted": (says(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"), True),
    "yes and an endless body": (for_ever(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, 0.0), True),
    "no HTTP": (says(b"garbage\r\n\r\n"), False),
    "nothing": (says(b""), False),
    "half a status line": (says(b"HTTP/1.1 2"), False),
    "redirect to a file": (says(b"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\n\r\n"), False),
    "redirect to a page": (says(b"HTTP/1.1 303 S\r\nLocation: /login\r\n\r\n"), False),
    "not modified": (says(b"HTTP/1.1 304 N\r\n\r\n"), False),
    "gone": (says(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"), False),
    "too many": (says(b"HTTP/1.1 429 Slow down\r\nContent-Length: 0\r\n\r\n"), False),
    "broken": (says(b"HTTP/1.1 500 E\r\nContent-Length: 0\r\n\r\n"), False),
    "silence": (silent, False),
    "a header without end": (for_ever(b"HTTP/1.1 200 OK\r\nX-A: ", b"b", 0.05), False),
    "endless continue": (for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05), False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_only_a_clear_yes_is_a_delivery_and_all_else_is_spooled_and_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer, arrives = ANSWERS[name]
    with answering(answer) as (url, taken), caplog.at_level(logging.WARNING):
        alerts = Alerts([Webhook(url, within_s=0.5)], spool=tmp_path / "spool")
        alerts.alert(ALERT)
        alerts.close()
    assert len(taken) == 1
    spooled = read_spool(tmp_path / "spool")
    assert [alert["key"] for alert in spooled] == ([] if arrives else ["nonfinite/3"])
    assert ("alert spooled" in caplog.text) == (not arrives)
    assert alerts.num_dropped == 0


@pytest.mark.slow
def test_a_channel_that_hangs_holds_up_neither_the_others_nor_the_next_alert(
    tmp_path: Path,
) -> None:
    class Hung:
        """Somebody's own channel, without a deadline."""

        def __init__(self) -> None:
            self.go = threading.Event()

        def deliver(self, message: bytes) -> bool:
            return self.go.wait()

    hung = Hung()
    out = tmp_path / "out"
    alerts = Alerts([hung, Command(["sh", "-c", f"cat >> {out}; echo >> {out}"])])
    for key in ("a", "b"):
        alerts.alert(Alert(severity="error", key=key, summary="x"))
    alerts.close(60)
    hung.go.set()
    assert [json.loads(line)["key"] for line in out.read_text().splitlines()] == ["a", "b"]


def test_what_close_cannot_wait_for_is_spooled(tmp_path: Path) -> None:
    with answering(silent) as (url, _):
        alerts = Alerts([Webhook(url, within_s=5)], spool=tmp_path / "spool")
        for key in ("a", "b"):
            alerts.alert(Alert(severity="error", key=key, summary="x"))
        alerts.close(0.1)
        assert sorted(alert["key"] for alert in read_spool(tmp_path / "spool")) == ["a", "b"]


JOB = """
import sys
from pathlib import Path
from spiketriage.train.recording.alerts import Alert, Alerts
from spiketriage.train.recording.channels import Command
alerts = Alerts([Command(["sh", "-c", "sleep 0.5; cat > " + sys.argv[1]])])
alerts.alert(Alert(severity="error", key="last", summary="words"))
raise RuntimeError("the job dies here")
"""


def test_a_job_that_dies_of_an_exception_still_sends_its_last_alert(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = subprocess.run([sys.executable, "-c", JOB, str(out)], capture_output=True, check=False)
    assert job.returncode == 1
    assert json.loads(out.read_text())["key"] == "last"


def test_one_that_nobody_takes_holds_up_no_other(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    alerts = Alerts([Command(["false"])], spool=spool)
    for key in ("poison", "good", "fine"):
        alerts.alert(Alert(severity="error", key=key, summary="x"))
    alerts.close()
    script = f'text=$(cat); case "$text" in *poison*) exit 1;; esac; echo "$text" >> {tmp_path}/out'
    later = Alerts([Command(["sh", "-c", script])], spool=spool, look_every_s=0.01, retry_every_s=0)
    while len(read_spool(spool)) > 1:
        time.sleep(0.01)
    later.close()
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == ["fine", "good"]
    assert [alert["key"] for alert in read_spool(spool)] == ["poison"]


def test_a_program_in_the_background_does_not_hold_the_alert() -> None:
    assert Command(["sh", "-c", "cat > /dev/null; sleep 60 & true"]).deliver(MESSAGE)


def test_a_program_without_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"]
    assert not Command(program, within_s=0.5).deliver(MESSAGE)
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    while state.exists() and ") Z" not in state.read_text():
        time.sleep(0.01)


def test_secrets_of_an_address_are_sent_and_never_said(caplog: pytest.LogCaptureFixture) -> None:
    with answering(says(b"HTTP/1.1 403 No\r\n\r\n")) as (url, taken):
        channel = Webhook(url.replace("//", "//us%40er:pa55@").replace("/hook", "/T0/s3cret"))
        alerts = Alerts([channel, Webhook("http://me:pa55@127.0.0.1:port/s3cret")])
        alerts.alert(ALERT)
        alerts.close()
    assert b"Authorization: Basic dXNAZXI6cGE1NQ==" in taken[0]
    assert "not delivered" in caplog.text
    for secret in ("pa55", "s3cret"):
        assert secret not in caplog.text + repr(channel)


def sent(webhook: Callable[[str], Webhook]) -> dict[str, Any]:
    with answering(says(OK)) as (url, taken):
        alerts = Alerts([webhook(url)])
        alerts.alert(ALERT)
        alerts.close()
    body: dict[str, Any] = json.loads(taken[0].partition(b"\r\n\r\n")[2])
    return body


def test_slack_gets_a_message_in_which_nothing_is_markup() -> None:
    body = sent(lambda url: Webhook(url, body=slack))
    assert body == {
        "text": "*error* rank 3: step 7 has a NaN &amp; &lt;Inf&gt;: 'w'\n"
        "run r1, step 7, rank 3\n`spiketriage triage r1`"
    }


def test_pagerduty_gets_an_event_of_its_second_version() -> None:
    body = sent(lambda url: Webhook(url, body=pagerduty("R0UT1NG")))
    payload = body.pop("payload")
    assert body == {
        "routing_key": "R0UT1NG",
        "event_action": "trigger",
        "dedup_key": "r1/nonfinite/3",
    }
    assert (payload["summary"], payload["source"]) == (ALERT.summary, "r1")
    assert payload["severity"] in ("critical", "error", "warning", "info")
    assert payload["custom_details"]["next_command"] == "spiketriage triage r1"


def test_a_long_summary_is_cut_to_what_the_receivers_take() -> None:
    alert = {"severity": "info", "key": "k" * 999, "summary": "x" * 9999}
    assert len(str(slack(alert)["text"])) == 4000
    event = pagerduty("r")(alert)
    assert (len(event["dedup_key"]), len(event["payload"]["summary"])) == (255, 1024)
