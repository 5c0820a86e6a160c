"""What comes out for inputs made after public bug reports, beside what a person reads off them.

Each row names a folder beside the checkout (`../shared/cases`) and what our commands must say of
it; it holds no input of its own. `python tests/reported_cases.py` prints the table of `docs/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared" / "cases"
FREEZE = ("freeze",)
HEALTHY = r"nothing spiked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input, the commands that are typed for it, and what they must and must not say."""

    name: str
    reads: str  # what a person reads off the input
    commands: tuple[tuple[str, ...], ...] = (FREEZE,)
    onset: int | None = None  # of `freeze`; None where there is none
    is_onset_open: bool = False  # where the input leaves it open
    exits: frozenset[int] = frozenset({0, 6})  # of the first command
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the commands said: the text of all, JSON and exit code of the first."""

    text: str
    first: dict[str, Any]
    exit_code: int


CASES_READ = (
    Case(
        name="01-all-nan-jsonl",
        reads="the loss is NaN from the first row",
        onset=1,
        says=("not a finite number",),
        never=(HEALTHY,),
    ),
    Case(
        name="04-megatron-bf16-grad-nan-only",
        reads="every gradient norm is NaN, and no line has a loss",
        onset=5425,
        says=("no loss",),
        never=(HEALTHY,),
    ),
    Case(
        name="05-rollback-abandoned-tail",
        reads="a spike at 8550 was rolled back; what followed is healthy to 9000",
        onset=8550,
        never=("step 9050",),
    ),
    Case(name="07-megatron-fp16-start-interval10", reads="fp16 starts: healthy"),
    Case(
        name="08-grpo-zero-gradient",
        reads="reinforcement learning with groups that agree: zeros are healthy",
    ),
    Case(
        name="10-hf-fp16-skipped-steps-no-scaler",
        reads="three overflow skips; the checkpoint is complete",
        commands=(("inspect",),),
        is_onset_open=True,
        says=("3 of 8",),
        never=("PROBLEM", "do not resume"),
    ),
    Case(
        name="12-lightning-two-experiments",
        reads="two experiments, not one run",
        is_onset_open=True,
        exits=frozenset({0, 2, 3, 5, 6}),
        says=("another run",),
        never=("step 50: loss",),
    ),
    Case(name="14-plain-metrics-csv", reads="the spike is on row step 80", onset=80),
    Case(
        name="15-verl-console",
        reads="NaN from step 151",
        onset=151,
        never=("torchtitan",),
    ),
    Case(
        name="16-llamafactory-trainer-log",
        reads="loss and learning rate by `current_steps`",
        commands=(("inspect",), FREEZE),
        is_onset_open=True,
        says=(r"loss.*55|steps? 5.*(60|55)|5 to \d+",),
        never=("no known format",),
    ),
    Case(name="18-deepspeed-pipeline-console", reads="the loss is NaN from 18", onset=18),
    Case(
        name="19-megatron-nan-assertion",
        reads="rank 114 on node-14 asserts a NaN in iteration 1",
        commands=(FREEZE, ("inspect",)),
        onset=1,
        says=("rank 114|114",),
        never=(HEALTHY,),
    ),
    Case(
        name="21-deepspeed-scale-at-minimum",
        reads="eight overflows in a row end the run",
        is_onset_open=True,
        says=("(?i)overflow|scale",),
        never=(HEALTHY,),
    ),
    Case(
        name="22-python-traceback",
        reads="a traceback: 50 iterations skipped in a row",
        commands=(("inspect",),),
        is_onset_open=True,
        says=("Skipped 50 iterations in a row",),
        never=("no known format",),
    ),
    Case(
        name="23-loss-under-another-name",
        reads="the loss has a name of its own",
        is_onset_open=True,
        exits=frozenset({5}),
        says=("train_loss_local", r"\[columns\]"),
        never=(HEALTHY,),
    ),
    Case(
        name="25-fairseq-new",
        reads="loss .441 at 3400 and .439 at 3600",
        commands=(("inspect",), FREEZE),
        says=("3400", "3600"),
        is_onset_open=True,
        never=("no known format",),
    ),
    Case(
        name="26-open-clip",
        reads="the loss becomes NaN",
        is_onset_open=True,
        says=("not a finite number",),
        never=(HEALTHY,),
    ),
    Case(name="27-maxtext", reads="the loss is NaN from step 7", onset=7),
    Case(
        name="29-tqdm-postfix",
        reads="the bar's loss becomes NaN",
        is_onset_open=True,
        says=("not a finite number",),
        never=(HEALTHY,),
    ),
    Case(
        name="31-nanochat",
        reads="60 healthy steps of loss and gradient norm",
        commands=(FREEZE, ("inspect",)),
        never=("no known format",),
    ),
    Case(
        name="35-consumed-samples-go-back",
        reads="at the resume consumed samples go back from 19,200 to 9,664",
        commands=(FREEZE, ("check",)),
        is_onset_open=True,
        says=("19,?200|9,?664",),
    ),
    Case(
        name="37-nccl-log-alone",
        reads="a hang: watchdog lines and nothing else",
        is_onset_open=True,
        exits=frozenset({0, 3, 6}),
        says=("(?i)watchdog|timeout",),
        never=(HEALTHY,),
    ),
    Case(
        name="40-jump-at-resume",
        reads="the first row after the resume from 500 jumps",
        onset=510,
        says=("restart", "500"),
    ),
    Case(
        name="41-nemo-reduced-train-loss", reads="a jump at 150 of `reduced_train_loss`", onset=150
    ),
    Case(
        name="42-one-plateau-four-incidents",
        reads="one jump that stays",
        commands=(FREEZE, ("triage",), ("status",)),
        onset=150,
        never=(r"step-?15[369]\b",),
    ),
)


def outcome(case: Case, scratch: Path) -> Outcome:
    """Type the commands of a case on a copy of its input."""
    run = scratch / "run"
    shutil.copytree(CASES / case.name, run, ignore=shutil.ignore_patterns("README"))
    subprocess.run(["chmod", "-R", "u+w", str(run)], check=True)
    texts = []
    codes = []
    for words in case.commands:
        done = _typed(*words, str(run))
        texts.append(done.stdout + done.stderr)
        codes.append(done.returncode)
    asked = json.loads(_typed("freeze", str(run), "--json", "--dry-run").stdout)
    return Outcome(text="\n".join(texts), first=asked, exit_code=codes[0])


def _typed(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPIKETRIAGE_QUIET": "1", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "spiketriage", *words],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=300,
    )


def faults(case: Case, seen: Outcome) -> Iterator[str]:
    """What is not as it must be."""
    if seen.exit_code not in case.exits:
        yield f"exit {seen.exit_code}"
    if not case.is_onset_open and seen.first.get("data", {}).get("onset") != case.onset:
        yield f"onset {seen.first.get('data', {}).get('onset')}, not {case.onset}"
    for pattern in case.says:
        if not re.search(pattern, seen.text):
            yield f"does not say {pattern!r}"
    for pattern in case.never:
        if re.search(pattern, seen.text):
            yield f"says {pattern!r}"


def main() -> None:
    """Print the table: each case, what it is, what came out."""
    print("| case | what a person reads off it | what comes out |")
    print("|---|---|---|")
    for case in CASES_READ:
        with tempfile.TemporaryDirectory() as scratch:
            seen = outcome(case, Path(scratch))
        wrong = "; ".join(faults(case, seen))
        print(f"| {case.name} | {case.reads} | {wrong or 'right'} |", flush=True)


if __name__ == "__main__":
    main()
