"""Start trial workers and collect what they answered: only trials that are not done yet are run.

The desk never imports torch: workers are child processes of the user's own Python, on a leash that
ends them with us.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spiketriage import durable
from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.leash import run_leashed, torchrun
from spiketriage.diagnosis.site import Site
from spiketriage.diagnosis.trial_files import DONE, chains, is_done
from spiketriage.digests import tree_of_file
from spiketriage.errors import CorruptFileError, EvidenceError, TrialError
from spiketriage.nouns.incident import TrialRow
from spiketriage.nouns.telemetry import Identity, LoadRecord, StepRecord
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.wire import trial as wire
from spiketriage.wire.trial import Launch, Trial

# A launch is a few dozen steps; one that takes an hour hangs in a collective.
LIMIT_S = 3600.0
# How to start a program on every rank, by the kind that the run's settings name.
LAUNCHERS: Mapping[str, Callable[..., list[str]]] = {"torchrun": torchrun}
FACTORS = ("state", "batch", "code", "loader", "placement", "precision", "kernel")


def execute(site: Site, trials: Sequence[Trial]) -> dict[str, Answer]:
    """Answers by trial key; what is already done is read, what is not is run, one launch per code.

    Raises:
        TrialError: a launch failed; finished trials stay finished and their log is named.
    """
    by_code: dict[str, dict[str, Trial]] = {}
    missing: set[str] = set()
    for trial in trials:
        if not is_done(site.trials, trial.key, site.recorded):
            missing.add(trial.key)
            by_code.setdefault(trial.factors.code, {})[trial.key] = trial
    for generation in sorted({t.factors.generation for t in trials if t.key in missing}):
        _require_unchanged(site, generation)
    for code in sorted(by_code):
        _launch(site, code, list(by_code[code].values()))
    answers: dict[str, Answer] = {}
    for trial in trials:
        answers[trial.key] = _answer(site, trial, cached=trial.key not in missing)
    return answers


def _require_unchanged(site: Site, generation: str) -> None:
    """Refuse to start from a generation that is no longer what was frozen: it would accuse the run.

    Raises:
        EvidenceError: a file is missing or its digest differs.
    """
    folder = site.checkpoints / generation
    for name, expected in site.digests.get(generation, {}).items():
        seen = tree_of_file(folder / name)
        if seen != expected:
            raise CorruptFileError(
                folder / name, "is not what its frozen manifest says", expected=expected, seen=seen
            )


def _launch(site: Site, code: str, trials: Sequence[Trial]) -> None:
    """Run trials that need the same code in one group of processes, to its end.

    Raises:
        TrialError: it failed, or took too long; its log is named.
    """
    launch = Launch(
        run=str(site.run),
        harness=site.harness,
        python_path=(str(site.codes[code]),),
        trials_folder=str(site.trials),
        checkpoints=str(site.checkpoints),
        trials=tuple(trials),
        num_threads=site.num_threads,
    )
    for trial in trials:
        _write_json(site.trials / trial.key / "trial.json", wire.trial_to_json(trial))
    order = site.trials / f"launch-{trials[0].key}.json"
    _write_json(order, wire.launch_to_json(launch))
    log = order.with_suffix(".log")
    start = LAUNCHERS[site.launcher]
    workers = start(site.num_processes, "-m", "spiketriage.train.worker", str(order))
    try:
        exit_code = run_leashed(workers, log, limit_s=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise _failed(log, trials, f"did not end within {LIMIT_S:g} s") from error
    if exit_code != 0:
        raise _failed(log, trials, f"ended with exit code {exit_code}: {_reason(order)}")


def _failed(log: Path, trials: Sequence[Trial], what: str) -> TrialError:
    return TrialError(
        f"a launch of {len(trials)} trials {what}; its log is {log}", hint=f"tail -n 40 {log}"
    )


def _reason(order: Path) -> str:
    """The last line of the first rank's own error, if it left one."""
    for path in sorted(order.parent.glob(f"{order.name}.rank-*.error")):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{path.name}: {lines[-1] if lines else 'empty'}"
    return "no rank left an error of its own"


def _answer(site: Site, trial: Trial, *, cached: bool) -> Answer:
    """What the trial's folder holds, once it is done.

    Raises:
        EvidenceError: its mark or a chain cannot be read.
    """
    folder = site.trials / trial.key
    try:
        done = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(
            f"{folder}/done.json: cannot be read: {error}", hint=f"rm -r {folder}"
        ) from error
    steps: list[StepRecord] = []
    loads: list[LoadRecord] = []
    identities: list[Identity] = []
    for path in chains(folder, done):
        segment = read_segment(path)
        steps += segment.steps
        loads += segment.loads
        if segment.identity is not None:
            identities.append(segment.identity)
    num_steps, wall_s = int(done["num_steps_executed"]), float(done["wall_s"])
    return Answer(
        trial=trial,
        cached=cached,
        row=make_row(trial, num_steps=num_steps, wall_s=wall_s),
        steps=tuple(steps),
        loads=tuple(loads),
        identities=tuple(identities),
        not_testable=str(done["not_testable"]),
    )


def make_row(trial: Trial, *, num_steps: int, wall_s: float) -> TrialRow:
    """A trial that is done, as the incident keeps it."""
    return TrialRow(
        key=trial.key,
        kind=trial.kind,
        purpose=trial.purpose,
        factors={name: getattr(trial.factors, name) for name in FACTORS},
        first_step=trial.first_step,
        last_step=trial.last_step,
        repeat=trial.repeat,
        state="done",
        num_steps_executed=num_steps,
        wall_s=wall_s,
        summary="",
    )


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    durable.write(path, json.dumps(value, indent=1).encode())
