"""What a reader found, in lines for people: checkpoints, telemetry, system events, data stores.

This module never opens a file and never judges what it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from spiketriage.diagnosis.findings import counted, listed
from spiketriage.nouns.checkpoint import CheckpointFacts, Measurement
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.scan.oddities import nonfinite, oddities, suspicions
from spiketriage.readers.scan.spread import unmeasured_path

MAX_LINES = 12
# What torch, numpy and the trainers' own classes put into a pickle; anything else deserves a look.
KNOWN_MODULES = (
    "torch", "numpy", "collections", "argparse", "pathlib", "_codecs", "datetime",
    "transformers", "accelerate", "deepspeed", "megatron", "lightning", "pytorch_lightning",
    "composer", "olmo_core", "torchtitan", "nanotron",
)  # fmt: skip
HARMLESS = (
    "builtins.set",
    "builtins.frozenset",
    "builtins.slice",
    "builtins.complex",
    "builtins.bytearray",
)


def checkpoint(facts: CheckpointFacts, measured: Measurement | None) -> Iterator[str]:
    """The lines of a checkpoint; `measured` is None where its bytes were not read."""
    yield from _steps(facts)
    if facts.complete:
        yield "complete by its layout's own rule"
    else:
        yield f"NOT complete{f': {facts.interrupted}' if facts.interrupted else ''}"
    yield f"world size {facts.world_size if facts.world_size is not None else 'not stated'}"
    num_bytes = sum(file.size_bytes for file in facts.files)
    yield f"{counted(len(facts.files), 'file')}, {size(num_bytes)}"
    yield from _tensors(facts)
    for kind, number in sorted(Counter(field.kind for field in facts.fields).items()):
        names = list(dict.fromkeys(field.name for field in facts.fields if field.kind == kind))
        yield f"{kind}: {counted(number, 'entry').replace('entrys', 'entries')} ({listed(names)})"
    yield from _bounded("PROBLEM ", facts.problems)
    strange = [name for name in facts.globals if not _is_usual(name)]
    if strange:
        yield f"WARNING its pickles name {listed(strange)}; nothing was imported or run"
    if measured is not None:
        yield from _measured(facts, measured)
    yield from _bounded("note: ", facts.notes)


def log(facts: LogFacts) -> Iterator[str]:
    """The lines of a telemetry source."""
    if facts.num_lines:
        if facts.num_near_misses:
            near = f", {counted(facts.num_near_misses, 'near miss')}es"
        else:
            near = ""
        yield f"{counted(facts.num_lines, 'line')}, {facts.num_matched} matched{near}".replace(
            "missses", "misses"
        )
    for series in islice(_by_interest(facts.series), MAX_LINES):
        yield _series(series)
    if len(facts.series) > MAX_LINES:
        yield f"… and {len(facts.series) - MAX_LINES} more series"
    for rollback in islice(facts.rollbacks, MAX_LINES):
        span = f"begins at step {rollback.first_step}, after step {rollback.last_step}"
        yield f"restart: attempt {rollback.attempt} {span}"
    yield from events(facts.events)
    yield from _bounded("PROBLEM ", facts.problems)
    yield from _bounded("note: ", facts.notes)


def event_file(facts: EventFacts) -> Iterator[str]:
    """The lines of a file of system evidence."""
    yield from events(facts.events)
    if not facts.events:
        yield "no event of a known kind"
    yield from _bounded("PROBLEM ", facts.problems)
    yield from _bounded("note: ", facts.notes)


def data(facts: DataFacts) -> Iterator[str]:
    """The lines of a data store."""
    documents, tokens = (
        "an unknown number" if number is None else str(number)
        for number in (facts.num_documents, facts.num_tokens)
    )
    yield (
        f"documents: {documents}, tokens: {tokens}, {facts.dtype}, in "
        f"{counted(len(facts.files), 'file')}"
    )
    yield from _bounded("PROBLEM ", facts.problems)
    yield from _bounded("note: ", facts.notes)


def events(found: Iterable[Event]) -> Iterator[str]:
    """The worst events first, a few of each severity."""
    order = ("fatal", "error", "warning", "info")
    ranked = sorted(found, key=lambda event: order.index(event.severity))
    for event in islice(ranked, MAX_LINES):
        where = " ".join(part for part in (event.at, event.host, event.device) if part)
        if event.rank is not None:
            rank = f" rank {event.rank}"
        else:
            rank = ""
        yield (
            f"{event.severity} {event.kind}{rank}{f' ({where})' if where else ''}: {event.sentence}"
        )
    if len(ranked) > MAX_LINES:
        yield f"… and {len(ranked) - MAX_LINES} more events"


def brief_checkpoint(facts: CheckpointFacts) -> str:
    """The one line of a checkpoint among others."""
    if facts.step is None:
        step = "step not stated"
    else:
        step = f"step {facts.step}"
    if not facts.steps_agree:
        return next(_steps(facts))
    if facts.problems:
        if len(facts.problems) > 1:
            more = f" (and {len(facts.problems) - 1} more)"
        else:
            more = ""
        return f"PROBLEM {step}: {facts.problems[0]}{more}"
    if facts.complete:
        complete = "complete"
    else:
        complete = f"NOT complete: {facts.interrupted or 'its save did not end'}"
    return f"{step}, {complete}, {size(sum(file.size_bytes for file in facts.files))}"


def brief_log(facts: LogFacts) -> str:
    """The one line of a telemetry source among others."""
    ranked = _by_interest(facts.series)
    told = _series(ranked[0]) if ranked else "no series"
    if facts.rollbacks:
        restarts = f"; {counted(len(facts.rollbacks), 'restart')}"
    else:
        restarts = ""
    if facts.problems:
        return f"PROBLEM {facts.problems[0]}; {told}{restarts}"
    return f"{told}{restarts}"


def brief_events(found: Iterable[Event]) -> str:
    """The one line of a file of system evidence among others."""
    return next(events(found), "no event of a known kind")


def size(num_bytes: int) -> str:
    """A size for people: `3.2 GB`."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}"


def _steps(facts: CheckpointFacts) -> Iterator[str]:
    if not facts.stated_steps:
        yield "step not stated anywhere"
    elif facts.steps_agree:
        sources = [stated.source for stated in facts.stated_steps]
        yield f"step {facts.step}, as {listed(sources)} {'says' if len(sources) == 1 else 'say'}"
    else:
        told = "; ".join(f"{stated.source} says {stated.step}" for stated in facts.stated_steps)
        yield f"PROBLEM its parts are not of one step: {told}"


def _tensors(facts: CheckpointFacts) -> Iterator[str]:
    for role in ("parameter", "optimizer", "other"):
        own = [tensor for tensor in facts.tensors if tensor.role == role]
        if own:
            dtypes = ", ".join(
                f"{number} {dtype}"
                for dtype, number in Counter(t.dtype for t in own).most_common(4)
            )
            elements = sum(int(np.prod(tensor.shape, dtype=np.float64)) for tensor in own)
            nameless = sum(role == "optimizer" and not tensor.parameter for tensor in own)
            if nameless:
                ambiguous = f"; {nameless} of an ambiguous parameter"
            else:
                ambiguous = ""
            yield (
                f"{counted(len(own), f'{role} tensor')} ({dtypes}), {elements} elements{ambiguous}"
            )


def _measured(facts: CheckpointFacts, measured: Measurement) -> Iterator[str]:
    for damage in islice(measured.damage, MAX_LINES):
        yield (
            f"PROBLEM {damage.path or facts.name}: {damage.name}: expected {damage.expected}, "
            f"found {damage.seen}"
        )
    unmeasured = [problem for problem in measured.problems if unmeasured_path(problem)]
    yield from _bounded(
        "PROBLEM ", [problem for problem in measured.problems if problem not in unmeasured]
    )
    yield from _bounded("", unmeasured)
    found = list(nonfinite(facts.tensors, measured))
    yield from _bounded("NONFINITE ", found)
    if unmeasured:
        return  # what follows is true of whole tensors only
    if not found and measured.stats:
        yield f"every element of {counted(len(measured.stats), 'tensor')} is finite"
    yield from _bounded("ODD ", oddities(facts.tensors, measured))
    yield from _bounded("look at ", suspicions(facts.tensors, measured))
    promised = len(facts.extents) or sum(
        chunk.container == "zip" for t in facts.tensors for chunk in t.chunks
    )
    if promised and not measured.damage:
        yield f"{counted(promised, 'stored checksum')} hold"


def _by_interest(series: Iterable[Series]) -> list[Series]:
    first = ("loss/mean", "grad/norm", "lr", "loss_scale")
    return sorted(
        series,
        key=lambda one: (first.index(one.name) if one.name in first else len(first), one.rank or 0),
    )


def _series(series: Series) -> str:
    steps, values = series.steps, series.values
    if len(steps):
        span = f"steps {steps[0]}–{steps[-1]}"
    else:
        span = "no steps"
    num_nonfinite = int(np.count_nonzero(~np.isfinite(values)))
    if series.rank is not None:
        rank = f" rank {series.rank}"
    else:
        rank = ""
    if series.attempt:
        attempt = f" attempt {series.attempt}"
    else:
        attempt = ""
    last = f", last {values[-1]:.6g}" if len(values) else ""
    if num_nonfinite:
        bad = f", {num_nonfinite} nonfinite"
    else:
        bad = ""
    if series.reasons:
        why = f" ({next(iter(series.reasons.values()))})"
    else:
        why = ""
    if not series.trusted:
        doubt = f"; not to be trusted: {series.trust}"
    else:
        doubt = ""
    return (
        f"{series.name}{rank}{attempt}: {counted(len(values), 'point')}, "
        f"{span}{last}{bad}{why}{doubt}"
    )


def _is_usual(name: str) -> bool:
    return name in HARMLESS or name.partition(".")[0] in KNOWN_MODULES


def _bounded(prefix: str, sentences: Iterable[str]) -> Iterator[str]:
    told = list(sentences)
    yield from (f"{prefix}{text}" for text in told[:MAX_LINES])
    if len(told) > MAX_LINES:
        yield f"{prefix}… and {len(told) - MAX_LINES} more"
