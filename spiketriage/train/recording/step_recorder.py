"""What a loop records of one step: links of the chain, scalars, vectors, the batch, its cursor.

It never waits for a device: numbers that are still tensors are gathered into one copy when the step
ends.
"""

# B rows, T positions.

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from spiketriage.digests import of_mapping, raw_of_bytes
from spiketriage.nouns.telemetry import Link
from spiketriage.train.recording import deferred, random_state
from spiketriage.train.recording.budget import LEVELS, Level
from spiketriage.train.recording.digester import Digester
from spiketriage.train.recording.fingerprint import fingerprint
from spiketriage.train.recording.tensors import digest_only, is_dtensor, local_key, local_part

# Stages of many tensors, of which a thinned recorder digests a part in each step.
ROTATING = frozenset(
    {
        "params_before",
        "activations",
        "local_gradient",
        "reduced_gradient",
        "optimizer",
        "params_after",
    }
)
Sink = Callable[[list[float]], None]
KeepBatch = Callable[["StepRecorder", Tensor, Any], None]
Notify = Callable[[str, str], None]


class Clock:
    """Seconds spent inside its `with` blocks; a block inside a block counts once."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._depth = 0
        self._since_s = 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._since_s = time.perf_counter()
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self.spent_s += time.perf_counter() - self._since_s


class StepRecorder:
    """Collects the links and metrics of one step; the frame is written when the step ends.

    Scalars and vectors may be tensors on any device: they are read as they are when the step ends,
    so hand over values that nobody changes before. `level` is what the recorder's budget allows in
    this step.
    """

    def __init__(
        self,
        step: int,
        *,
        level: Level = LEVELS[0],
        digester: Digester,
        keep_batch: KeepBatch | None = None,
        notify: Notify | None = None,
    ) -> None:
        self.step = step
        self.level = level
        self._digester = digester
        self.clock = Clock()
        self.metrics: dict[str, float] = {}
        self.links: dict[Link, bytes] = {}
        self.nonfinite: list[Link] = []
        self.batch_ids: Any = None
        self.document_digests: dict[str, str] = {}
        self.vectors: dict[str, list[list[float]]] = {}
        self.rng: random_state.State = {}
        self.cursor: Any = None
        self.anomalies: list[str] = []
        self.last_stage = ""
        self._pending: list[tuple[Tensor, Sink]] = []
        self._keep_batch, self._notify = keep_batch, notify

    def capture(self, cursor: Any = None) -> None:
        """Every generator's state and the data cursor (any JSON value), as before the forward."""
        with self.clock:
            self.rng = random_state.capture()
            self.cursor = cursor

    def ids(self, value: Any) -> None:
        """The batch's name as the harness gives it: any JSON value."""
        with self.clock:
            self.batch_ids = value
            self._link(Link("ids", "all"), raw_of_bytes(json.dumps(value, sort_keys=True).encode()))

    def content(self, digests: Mapping[str, str]) -> None:
        """Hex digest of every document's bytes as they were consumed."""
        with self.clock:
            self.document_digests.update(digests)
            self._link(Link("content", "all"), bytes.fromhex(of_mapping(self.document_digests)))

    def tokens(self, tokens_BT: Tensor, documents: Any = None) -> None:
        """Keep the token ids of this (micro)batch in the ring of recent ones, with its documents.

        It is handed to the writer at once, before the forward, with what `capture` took: a crash in
        the step has it.
        """
        with self.clock:
            if self._keep_batch is not None:
                self._keep_batch(self, tokens_BT.detach(), documents)

    def tensor(self, stage: str, key: str, value: Tensor) -> None:
        """Digest and finiteness of one tensor of `stage`, whatever the digest period."""
        with self.clock:
            self.last_stage = stage
            self._tensors(
                stage, [(local_key(key, value), local_part(value))], is_finiteness_known=False
            )

    def tensors(
        self, stage: str, values: Mapping[str, Tensor], *, norms_P: Tensor | None = None
    ) -> None:
        """Digest and finiteness of every named tensor of `stage`; of a DTensor, its local shard.

        Stages of many tensors rotate: a tensor's turn comes every `level.digest_period` steps, the
        same on every rank. `norms_P` (P,) are L2 norms of `values` in order, where the caller has
        them: a nonfinite one marks its tensor in every step, and no other look is taken. A finite
        tensor whose norm overflows float32 counts as nonfinite then.
        """
        with self.clock:
            period = 1
            if stage in ROTATING:
                period = self.level.digest_period
            # After step k the tensors are digested that step k + 1 digests before: continuity can
            # then be checked.
            turn = self.step + (stage == "params_after")
            items = list(values.items())
            due = items[-turn % period :: period]
            parts = [(local_key(name, value), local_part(value)) for name, value in due]
            self._tensors(stage, parts, is_finiteness_known=norms_P is not None)
            self.last_stage = stage
            if norms_P is not None:
                names = [local_key(name, value) for name, value in items]
                self.defer(norms_P, lambda norms: self._judge(stage, names, norms))

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Metrics by their names in `wire.chain.METRICS`: numbers, or tensors of one element."""
        with self.clock:
            for name, value in values.items():
                if isinstance(value, Tensor):
                    self._log_tensor(name, value)
                else:
                    self._log_number(name, value)

    def series(self, name: str, values: Sequence[float] | Tensor) -> None:
        """A vector metric (`wire.chain.SERIES`); repeated calls append."""
        with self.clock:
            parts = self.vectors.setdefault(name, [])
            if isinstance(values, Tensor):
                part: list[float] = []
                parts.append(part)
                self.defer(values, part.extend)
            else:
                parts.append(list(values))

    def several_series(self, values: Mapping[str, Sequence[float] | Tensor]) -> None:
        """Several vector metrics, each as by `series`."""
        for name, vector in values.items():
            self.series(name, vector)

    def anomaly(self, text: str) -> None:
        """Something that should be on the disk's platter at once, as a guard's verdict."""
        self.anomalies.append(text)

    def defer(self, value: Tensor, sink: Sink) -> None:
        """Hand the numbers of `value` (real, any shape) to `sink` in the writing thread."""
        self._pending.append((value, sink))

    def start_copy(self) -> tuple[deferred.Copy, list[Sink]]:
        """Start the step's one copy of everything that is still a tensor."""
        copy = deferred.start([value for value, _ in self._pending])
        sinks = [sink for _, sink in self._pending]
        self._pending.clear()
        return copy, sinks

    def _link(self, link: Link, digest: bytes) -> None:
        self.links[link] = digest
        self.last_stage = link.stage

    def _tensors(
        self, stage: str, parts: Sequence[tuple[str, Tensor]], *, is_finiteness_known: bool
    ) -> None:
        """Digest this rank's pieces: at once on the host, else as part of the step's copy."""
        for key, value in parts:
            link = Link(stage, key)
            if value.device.type != "cpu":
                self._fingerprint(link, value, is_finiteness_known=is_finiteness_known)
            elif is_finiteness_known:
                self.links[link] = digest_only(value)
            else:
                taken = self._digester.take(key, value)
                self.links[link] = taken.digest
                if not taken.finite:
                    self.nonfinite.append(link)

    def _fingerprint(self, link: Link, value: Tensor, *, is_finiteness_known: bool) -> None:
        self.links[link] = bytes(16)  # its place in the chain; the numbers come with the copy
        # A view: not one of these bits is looked at as a float on its way.
        bits = fingerprint(value).view(torch.float64)
        self.defer(bits, lambda halves: self.links.__setitem__(link, _raw(halves)))
        if is_finiteness_known or not value.numel():
            return
        if value.is_complex():
            value = torch.view_as_real(value)
        if not value.is_floating_point():
            return
        if value.dtype.itemsize == 1:
            value = value.float()  # torch has no aminmax for 8-bit floats
        ends = torch.stack(torch.aminmax(value))
        # 0 · x is 0 for any number, and NaN for a NaN or an infinity.
        self.defer(
            ends,
            lambda both: self._judge(link.stage, [link.key], [0.0 * both[0] + 0.0 * both[1]]),
        )

    def _judge(self, stage: str, names: Iterable[str], norms: Iterable[float]) -> None:
        """Mark the tensors whose number is not finite; runs in the writing thread."""
        for name, norm in zip(names, norms, strict=True):
            if norm - norm != 0.0:
                self.nonfinite.append(Link(stage, name))

    def _log_number(self, name: str, value: object) -> None:
        """A plain number, also one of numpy's; anything else is left out, not to cost the step."""
        try:
            self.metrics[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            if self._notify is not None:
                self._notify("off", f"{name} is a {type(value).__name__}, not a number")

    def _log_tensor(self, name: str, value: Tensor) -> None:
        if is_dtensor(value):
            if not all(place.is_replicate() for place in value.placements):  # type: ignore[attr-defined]
                # Completing it here would be a collective that no other rank may join.
                if self._notify is not None:
                    self._notify(
                        "off", f"{name} is a partial or sharded DTensor: log its full_tensor()"
                    )
                return
            value = local_part(value)
        self.defer(value, lambda numbers: self.metrics.__setitem__(name, numbers[0]))


def _raw(halves: list[float]) -> bytes:
    return torch.tensor(halves, dtype=torch.float64).view(torch.uint8).numpy().tobytes()
