"""Messages that leave the job, and dashboards that take their time.

Delivered, spooled, held back, dropped, counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import IDENTITY

from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.readers.telemetry.stores.tensorboard import read as read_tensorboard
from spiketriage.train.recording.alerts import Alert, Alerts, read_spool
from spiketriage.train.recording.channels import Command, Webhook
from spiketriage.train.recording.mirrors import Mirrors, Prometheus, TensorBoard
from spiketriage.train.recording.recorder import Recorder


class Server(HTTPServer):
    """Answers with `status` and keeps what it was sent."""

    status = 200
    taken: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.taken.append(body)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.taken = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.01)


def loss_alert(**fields: Any) -> Alert:
    given = {
        "severity": "error",
        "key": "loss",
        "summary": "loss is NaN",
        "step": 7,
        "value": float("nan"),
    }
    return Alert(**{**given, **fields})


def test_a_webhook_gets_what_happened_and_what_to_type() -> None:
    with serving() as (server, url):
        alerts = Alerts([Webhook(url)])
        alerts.alert(
            loss_alert(
                run="r1", metric="loss/mean", threshold=4.0, next_command="spiketriage triage r1"
            )
        )
        alerts.alert(loss_alert(severity="info", key="other"))  # below the least severity
        alerts.close()
    (sent,) = server.taken
    assert (sent["step"], sent["value"], sent["threshold"]) == (7, "NaN", 4.0)
    assert (sent["metric"], sent["next_command"]) == ("loss/mean", "spiketriage triage r1")
    assert alerts.num_dropped == 0


def test_one_key_is_told_once_a_cool_down_and_then_says_how_many_it_held_back(
    tmp_path: Path,
) -> None:
    now_s = [0.0]
    out = tmp_path / "out"
    alerts = Alerts(
        [Command(["sh", "-c", f"cat >> {out}; echo >> {out}"])],
        cooldown_s=60,
        clock=lambda: now_s[0],
    )
    for moment in (0, 1, 59, 61, 62):
        now_s[0] = moment
        alerts.alert(loss_alert(step=moment))
    alerts.alert(loss_alert(key="grad", step=62))
    alerts.close()
    sent = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["key"], one["step"], one["num_suppressed"]) for one in sent] == [
        ("loss", 0, 0),
        ("loss", 61, 2),
        ("grad", 62, 0),
    ]


def test_what_does_not_arrive_is_spooled_and_arrives_later_from_another_process_too(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool"
    with serving() as (server, url):
        server.status = 500
        first = Alerts([Webhook(url), Command(["false"])], spool=spool)
        first.alert(loss_alert())
        first.alert(loss_alert(key="grad"))
        first.close()
        assert [one["key"] for one in read_spool(spool)] == ["loss", "grad"]
        server.status = 200
        second = Alerts([Webhook(url)], spool=spool, look_every_s=0.01, retry_every_s=0.01)
        until(lambda: len(server.taken) == 2)
        until(lambda: not read_spool(spool))
        second.close()
    assert [one["key"] for one in server.taken] == ["loss", "grad"]


def test_without_a_spool_a_lost_alert_is_counted(tmp_path: Path) -> None:
    alerts = Alerts([Command([str(tmp_path / "no such program")]), Webhook("file:///etc/passwd")])
    alerts.alert(loss_alert())
    alerts.close()
    assert alerts.num_dropped == 1


def test_a_recorded_nan_is_told_unless_a_guard_judged_it_or_a_loss_scaler_skips_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    alerts = Alerts(
        [Command(["sh", "-c", f"cat >> {out}; echo >> {out}"])], look_every_s=0.01, cooldown_s=0
    )
    with Recorder(tmp_path, rank=3, identity=IDENTITY, patience_s=60) as recorder:
        alerts.watch(recorder, run="r1", next_command="spiketriage triage r1")
        for number in (1, 2, 3, 4):
            with recorder.step(number) as step:
                step.log({"loss/sum": float("nan") if number in (2, 4) else 1.0})
                if number == 2:
                    step.log({"guard/action": 2.0})
                if number == 3:
                    step.log({"loss_scale": 1024.0, "grad/norm": float("inf")})
                if number == 4:
                    step.tensor("local_gradient", "w", torch.tensor([1.0, float("inf")]))
            until(lambda: recorder._queue.num_waiting == 0)
        until(out.exists)
    alerts.close()
    (sent,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (sent["severity"], sent["key"], sent["step"], sent["rank"]) == (
        "error",
        "nonfinite/3",
        4,
        3,
    )
    assert sent["summary"] == "rank 3: step 4 has a NaN or Inf: local_gradient w, loss/sum"
    assert (sent["run"], sent["next_command"]) == ("r1", "spiketriage triage r1")


def test_mirrors_get_every_metric_under_our_names(tmp_path: Path) -> None:
    mirrors = Mirrors([TensorBoard(tmp_path / "board"), Prometheus(tmp_path / "node" / "job.prom")])
    with Recorder(tmp_path, rank=0, identity=IDENTITY, mirror=mirrors) as recorder:
        for number in (1, 2):
            with recorder.step(number) as step:
                step.log({"loss/mean": 2.5 * number, "grad/norm": float("inf")})
    mirrors.close()
    (file,) = (tmp_path / "board").iterdir()
    series = {one.name: one for one in read_tensorboard(file, DEFAULT).series}
    (name,) = [name for name in series if name.endswith("loss/mean")]
    assert (list(series[name].steps), list(series[name].values)) == ([1, 2], [2.5, 5.0])
    text = (tmp_path / "node" / "job.prom").read_text().splitlines()
    assert "spiketriage_step 2" in text
    assert "spiketriage_loss_mean 5.0" in text
    assert "spiketriage_grad_norm +Inf" in text
    assert "# HELP spiketriage_loss_mean nats per valid token, all ranks" in text


class Stuck:
    """A dashboard that does not answer until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[int] = []

    def write(self, step: int, metrics: object) -> None:
        self.go.wait()
        self.seen.append(step)

    def close(self) -> None:
        """Nothing to flush."""


class Broken(Stuck):
    """A dashboard that raises."""

    def write(self, step: int, metrics: object) -> None:
        raise ConnectionError("gone")


@pytest.mark.parametrize("kind", [Stuck, Broken])
def test_a_mirror_that_hangs_or_fails_loses_points_and_the_file_counts_them(
    tmp_path: Path, kind: type[Stuck]
) -> None:
    target = kind()
    mirrors = Mirrors([target], max_waiting=2)
    with Recorder(tmp_path, rank=0, identity=IDENTITY, mirror=mirrors, patience_s=60) as recorder:
        for number in range(1, 8):
            with recorder.step(number) as step:
                step.log({"loss/mean": 1.0})
            if kind is Broken:
                until(lambda: mirrors.num_dropped == number)  # noqa: B023 asked in this round only
    target.go.set()
    mirrors.close()
    lost = [
        record.metrics["recorder/num_mirror_dropped"]
        for record in read_segment(recorder.path).steps
    ]
    assert lost == ([0, 0, 0, 1, 2, 3, 4] if kind is Stuck else [0, 1, 2, 3, 4, 5, 6])
    assert target.seen == ([1, 2] if kind is Stuck else [])
