"""`spiketriage rehearse`: train a run with a planted fault, list the faults, score the verdicts.

Like every command it parses, calls and shows; what a fault is, only `practice` knows.
"""

from __future__ import annotations

import typer

from spiketriage.cli import options as o
from spiketriage.cli.place import called, numbers
from spiketriage.cli.show import show
from spiketriage.errors import UsageError

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def rehearse(
    context: typer.Context,
    fault: o.Fault = None,
    seed: o.Seed = 1,
    out: o.Out = None,
    stabilizer: o.Stabilizers = None,
    as_json: o.Json = False,
) -> int:
    """Train a small run with a planted fault, to practise on."""
    if context.invoked_subcommand:
        return 0
    if fault is None or out is None:
        raise UsageError(
            "a rehearsal needs --fault and --out; `spiketriage rehearse list` shows the faults",
            hint="spiketriage rehearse --fault shard-bitrot --out rehearsal-run",
        )
    from spiketriage.practice.rehearsal import launch as it

    names = tuple(stabilizer or ())
    result = it.run(fault=fault, seed=seed, out=out, stabilizers=names, argv=called())
    return show("rehearse", result, as_json)


@app.command("list")
def list_(as_json: o.Json = False) -> int:
    """List the faults that can be planted, and the controls."""
    from spiketriage.practice.rehearsal import catalogue as it

    return show("rehearse-list", it.run(argv=called()), as_json)


@app.command()
def score(
    seeds: o.Seeds = "11,12,13",
    fault: o.Faults = None,
    keep: o.Keep = None,
    as_json: o.Json = False,
) -> int:
    """Rehearse and triage every fault; count the right verdicts.

    Every fault is planted once for every seed.
    """
    chosen, faults = numbers(seeds), tuple(fault or ())
    from spiketriage.practice.rehearsal import score as it

    result = it.run(seeds=chosen, faults=faults, keep=keep, argv=called())
    return show("rehearse-score", result, as_json)
