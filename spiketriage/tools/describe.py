"""Checkpoints, telemetry, system events and data stores in lines for people.

This module never opens a file and never judges what a reader says of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from spiketriage.nouns.checkpoint import CheckpointFacts, Measurement
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.scan.oddities import nonfinite, oddities, suspicions
from spiketriage.readers.scan.spread import unmeasured_path

MAX_NAME_CHARS = 200
MAX_LINES = 12  # of one sort, so that the whole description fits a screen
SEVERITIES = ("fatal", "error", "warning", "info")
MOST_ASKED = ("loss/mean", "grad/norm", "lr", "loss_scale")
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
        yield f"NOT complete: {facts.interrupted}".removesuffix(": ")
    if facts.world_size is None:
        yield "world size not stated"
    else:
        yield f"world size {facts.world_size}"
    num_bytes = sum(file.size_bytes for file in facts.files)
    yield f"{counted(len(facts.files), 'file')}, {size(num_bytes)}"
    yield from _tensors(facts)
    yield from _fields(facts)
    yield from _bounded("PROBLEM ", facts.problems)
    strange = [name for name in facts.globals if not _is_usual(name)]
    if strange:
        yield f"WARNING its pickles name {listed(strange)}; nothing was imported or run"
    if measured is not None:
        yield from _measured(facts, measured)
    yield from _bounded("note: ", facts.notes)


def log(facts: LogFacts, reported: Iterable[Event]) -> Iterator[str]:
    """The lines of a telemetry source, in which others than its own reader may see events."""
    if facts.num_lines:
        lines = f"{counted(facts.num_lines, 'line')}, {facts.num_matched} matched"
        if facts.num_near_misses:
            noun = "near miss" if facts.num_near_misses == 1 else "near misses"
            lines = f"{lines}, {facts.num_near_misses} {noun}"
        yield lines
    for series in _by_interest(facts.series)[:MAX_LINES]:
        yield _series(series)
    if len(facts.series) > MAX_LINES:
        yield f"… and {len(facts.series) - MAX_LINES} more series"
    for rollback in islice(facts.rollbacks, MAX_LINES):
        span = f"begins at step {rollback.first_step}, after step {rollback.last_step}"
        yield f"restart: attempt {rollback.attempt} {span}"
    yield from events(dict.fromkeys((*facts.events, *reported)))
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
    documents, tokens = _known(facts.num_documents), _known(facts.num_tokens)
    files = counted(len(facts.files), "file")
    yield f"documents: {documents}, tokens: {tokens}, {facts.dtype}, in {files}"
    yield from _bounded("PROBLEM ", facts.problems)
    yield from _bounded("note: ", facts.notes)


def _known(number: int | None) -> str:
    if number is None:
        return "an unknown number"
    return str(number)


def events(reported: Iterable[Event]) -> Iterator[str]:
    """The worst events, and how many there are beside them."""
    ranked = sorted(reported, key=lambda event: SEVERITIES.index(event.severity))
    for event in ranked[:MAX_LINES]:
        yield event.headline
    if len(ranked) > MAX_LINES:
        yield f"… and {len(ranked) - MAX_LINES} more events"


def brief_checkpoint(facts: CheckpointFacts) -> str:
    """The one line of a checkpoint among others."""
    if not facts.steps_agree:
        return next(_steps(facts))
    step = "step not stated"
    if facts.step is not None:
        step = f"step {facts.step}"
    if facts.problems:
        problem = f"PROBLEM {step}: {facts.problems[0]}"
        if len(facts.problems) > 1:
            problem = f"{problem} (and {len(facts.problems) - 1} more)"
        return problem
    complete = "complete"
    if not facts.complete:
        complete = f"NOT complete: {facts.interrupted or 'its save did not end'}"
    return f"{step}, {complete}, {size(sum(file.size_bytes for file in facts.files))}"


def notes(by_name: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The notes of several things by their names, each once, those of the fewest first."""
    names: dict[str, list[str]] = {}
    for name, own in by_name.items():
        for note in own:
            names.setdefault(note, []).append(name)
    ranked = sorted(names, key=lambda note: len(names[note]))
    yield from _bounded("note: ", (f"{listed(names[note])}: {note}" for note in ranked))


def brief_log(facts: LogFacts, reported: Iterable[Event]) -> str:
    """The one line of a telemetry source among others, with what ended its run."""
    parts = []
    if facts.problems:
        parts.append(f"PROBLEM {facts.problems[0]}")
    ranked = _by_interest(facts.series)
    if ranked:
        parts.append(_series(ranked[0]))
    else:
        parts.append("no series")
    if facts.rollbacks:
        parts.append(_restarts(facts))
    parts.extend(islice(events(_fatal((*reported, *facts.events))), 1))
    return "; ".join(parts)


def _fatal(reported: Iterable[Event]) -> list[Event]:
    return [event for event in reported if event.severity == SEVERITIES[0]]


def _restarts(facts: LogFacts) -> str:
    """How often the log goes back; what starts over from the first step is another run."""
    firsts = [int(series.steps[0]) for series in facts.series if len(series.steps)]
    first = min(firsts, default=0)
    num_over = sum(rollback.first_step <= first for rollback in facts.rollbacks)
    num_back = len(facts.rollbacks) - num_over
    parts = []
    if num_back:
        parts.append(counted(num_back, "restart"))
    if num_over:
        parts.append(f"{num_over + 1} runs, of which each starts over from step {first}")
    return ", ".join(parts)


def brief_events(reported: Iterable[Event]) -> str:
    """The one line of a file of system evidence among others."""
    return next(events(reported), "no event of a known kind")


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
        verb = "says" if len(sources) == 1 else "say"
        yield f"step {facts.step}, as {listed(sources)} {verb}"
    else:
        steps = "; ".join(f"{stated.source} says {stated.step}" for stated in facts.stated_steps)
        yield f"PROBLEM its parts are not of one step: {steps}"


def _tensors(facts: CheckpointFacts) -> Iterator[str]:
    for role in ("parameter", "optimizer", "other"):
        tensors = [tensor for tensor in facts.tensors if tensor.role == role]
        if not tensors:
            continue
        commonest = Counter(tensor.dtype for tensor in tensors).most_common(4)
        dtypes = ", ".join(f"{number} {dtype}" for dtype, number in commonest)
        elements = sum(int(np.prod(tensor.shape, dtype=np.float64)) for tensor in tensors)
        line = f"{counted(len(tensors), f'{role} tensor')} ({dtypes}), {elements} elements"
        nameless = sum(not tensor.parameter for tensor in tensors)
        if role == "optimizer" and nameless:
            line = f"{line}; {nameless} of an ambiguous parameter"
        yield line


def _fields(facts: CheckpointFacts) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for field in facts.fields:
        names.setdefault(field.kind, []).append(field.name)
    for kind in sorted(names):
        noun = "entry" if len(names[kind]) == 1 else "entries"
        distinct = list(dict.fromkeys(names[kind]))
        yield f"{kind}: {len(names[kind])} {noun} ({listed(distinct)})"


def _measured(facts: CheckpointFacts, measured: Measurement) -> Iterator[str]:
    for damage in islice(measured.damage, MAX_LINES):
        yield (
            f"PROBLEM {damage.path or facts.name}: {damage.name}: expected {damage.expected}, "
            f"found {damage.seen}"
        )
    unmeasured, problems = [], []
    for problem in measured.problems:
        if unmeasured_path(problem):
            unmeasured.append(problem)
        else:
            problems.append(problem)
    yield from _bounded("PROBLEM ", problems)
    yield from _bounded("", unmeasured)
    bad_tensors = list(nonfinite(facts.tensors, measured))
    yield from _bounded("NONFINITE ", bad_tensors)
    if unmeasured:
        return  # what follows is true of whole tensors only
    if not bad_tensors and measured.stats:
        yield f"every element of {counted(len(measured.stats), 'tensor')} is finite"
    yield from _bounded("ODD ", oddities(facts.tensors, measured))
    yield from _bounded("look at ", suspicions(facts.tensors, measured))
    num_checksums = len(facts.extents) or _num_zipped_chunks(facts)
    if num_checksums and not measured.damage:
        yield f"{counted(num_checksums, 'stored checksum')} hold"


def _num_zipped_chunks(facts: CheckpointFacts) -> int:
    """Chunks in zip archives, each of which has a checksum of its own."""
    number = 0
    for tensor in facts.tensors:
        number += sum(chunk.container == "zip" for chunk in tensor.chunks)
    return number


def _by_interest(series: Iterable[Series]) -> list[Series]:
    def interest(candidate: Series) -> tuple[int, int]:
        place = len(MOST_ASKED)
        if candidate.name in MOST_ASKED:
            place = MOST_ASKED.index(candidate.name)
        return place, candidate.rank or 0

    return sorted(series, key=interest)


def _series(series: Series) -> str:
    steps, values = series.steps, series.values
    name = _bounded_name(series.name)
    if series.rank is not None:
        name = f"{name} rank {series.rank}"
    if series.attempt:
        name = f"{name} attempt {series.attempt}"
    parts = [counted(len(values), "point")]
    if len(steps):
        parts.append(f"steps {steps[0]}–{steps[-1]}")
    else:
        parts.append("no steps")
    if len(values):
        parts.append(f"last {values[-1]:.6g}")
    num_nonfinite = int(np.count_nonzero(~np.isfinite(values)))
    if num_nonfinite:
        parts.append(f"{num_nonfinite} nonfinite")
    line = f"{name}: {', '.join(parts)}"
    if series.reasons:
        line = f"{line} ({_bounded_name(next(iter(series.reasons.values())))})"
    if not series.trusted:
        line = f"{line}; not to be trusted: {series.trust}"
    return line


def _bounded_name(name: str) -> str:
    """A name that a log gives, cut where the line would become unreadable."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[:MAX_NAME_CHARS]}…"


def _is_usual(name: str) -> bool:
    return name in HARMLESS or name.partition(".")[0] in KNOWN_MODULES


def _bounded(prefix: str, sentences: Iterable[str]) -> Iterator[str]:
    listed_sentences = list(sentences)
    for sentence in listed_sentences[:MAX_LINES]:
        yield f"{prefix}{sentence}"
    if len(listed_sentences) > MAX_LINES:
        yield f"{prefix}… and {len(listed_sentences) - MAX_LINES} more"
