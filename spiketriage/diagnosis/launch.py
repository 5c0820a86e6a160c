"""Start trial workers and collect what they answered: only trials that are not done yet are run.

The desk never imports torch: workers are child processes of the user's own Python, on a leash that
ends them with us.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spiketriage import durable
from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.leash import run_leashed, torchrun
from spiketriage.diagnosis.site import Site
from spiketriage.digests import of_file
from spiketriage.errors import CorruptFileError, EvidenceError, TrialError
from spiketriage.nouns.incident import TrialRow
from spiketriage.readers.telemetry.run.native import read_segment
from spiketriage.wire import trial as wire
from spiketriage.wire.trial import Launch, Trial

LIMIT_S = 3600.0


def execute(site: Site, trials: Sequence[Trial]) -> dict[str, Answer]:
    """Answers by trial key; what is already done is read, what is not is run, one launch per code.

    Raises:
        TrialError: a launch failed; finished trials stay finished and their log is named.
    """
    cached = {trial.key for trial in trials if _is_done(site, trial)}
    missing = {trial.key: trial for trial in trials if trial.key not in cached}
    for generation in sorted({trial.factors.generation for trial in missing.values()}):
        _require_unchanged(site, generation)
    for code in sorted({trial.factors.code for trial in missing.values()}):
        _launch(site, code, [trial for trial in missing.values() if trial.factors.code == code])
    return {trial.key: _answer(site, trial, cached=trial.key in cached) for trial in trials}


def _require_unchanged(site: Site, generation: str) -> None:
    """Refuse to start from a generation that is no longer what was frozen.

    It would accuse production.

    Raises:
        EvidenceError: a file is missing or its digest differs.
    """
    folder = site.checkpoints / generation
    for name, expected in site.digests.get(generation, {}).items():
        seen = of_file(folder / name)
        if seen != expected:
            raise CorruptFileError(
                folder / name, "is not what its frozen manifest says", expected=expected, seen=seen
            )


def _is_done(site: Site, trial: Trial) -> bool:
    """Whether the trial was marked done and its chains are still what they were then."""
    folder = site.trials / trial.key
    try:
        chains = json.loads((folder / "done.json").read_text(encoding="utf-8"))["chains"]
        return bool(chains) and all(
            of_file(folder / name) == digest for name, digest in chains.items()
        )
    except (OSError, ValueError, KeyError, EvidenceError):
        return False


def _launch(site: Site, code: str, trials: Sequence[Trial]) -> None:
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
    workers = torchrun(site.num_processes, "-m", "spiketriage.train.worker", str(order))
    code_seen = run_leashed(workers, log, limit_s=LIMIT_S)
    if code_seen != 0:
        raise TrialError(
            f"a launch of {len(trials)} trials ended with exit code {code_seen}: "
            f"{_reason(order)}; its log is {log}",
            hint=f"tail -n 40 {log}",
        )


def _reason(order: Path) -> str:
    """The last line of the first rank's own error, if it left one."""
    for path in sorted(order.parent.glob(f"{order.name}.rank-*.error")):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{path.name}: {lines[-1] if lines else 'empty'}"
    return "no rank left an error of its own"


def _answer(site: Site, trial: Trial, *, cached: bool) -> Answer:
    folder = site.trials / trial.key
    try:
        done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(
            f"{folder}/done.json: cannot be read: {error}", hint=f"rm -r {folder}"
        ) from error
    segments = [read_segment(path) for path in sorted(folder.glob("rank-*.chain"))]
    return Answer(
        trial=trial,
        cached=cached,
        row=row(
            trial, "done", num_steps=int(done["num_steps_executed"]), wall_s=float(done["wall_s"])
        ),
        steps=tuple(step for segment in segments for step in segment.steps),
        loads=tuple(load for segment in segments for load in segment.loads),
        identities=tuple(segment.identity for segment in segments if segment.identity),
        not_testable=str(done["not_testable"]),
    )


def row(trial: Trial, state: str, *, num_steps: int, wall_s: float, summary: str = "") -> TrialRow:
    """The trial as the incident keeps it."""
    names = ("state", "batch", "code", "loader", "placement", "precision", "kernel")
    assert state in ("planned", "done", "failed", "interrupted")
    return TrialRow(
        key=trial.key,
        kind=trial.kind,
        purpose=trial.purpose,
        factors={name: getattr(trial.factors, name) for name in names},
        first_step=trial.first_step,
        last_step=trial.last_step,
        repeat=trial.repeat,
        state=state,  # type: ignore[arg-type]
        num_steps_executed=num_steps,
        wall_s=wall_s,
        summary=summary,
    )


def unique(trials: Iterable[Trial]) -> list[Trial]:
    """Trials without repetition of the same question, in first-seen order."""
    return list({trial.key: trial for trial in trials}.values())


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    durable.write(path, json.dumps(value, indent=1).encode())
