"""The commands, in the order of the runbook: each parses, calls its step and shows the result.

No command decides anything, and none imports its step before it is called.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from spiketriage import __version__
from spiketriage.cli import options as o
from spiketriage.cli import rehearse
from spiketriage.cli.consent import may_import
from spiketriage.cli.entry import guard
from spiketriage.cli.place import called, find_run, find_source, status_here
from spiketriage.cli.show import show, show_alarm, show_text

app = typer.Typer(
    name="spiketriage",
    help="Name the cause of a loss spike from evidence, one changed factor at a time.",
    epilog="Exit codes: 0 holds, 1 found something against, 2 usage, 3 refused, 4 integrity, "
    "5 inconclusive, 6 partial, 7 child failed, 8 busy, 70 bug, 130 interrupted, 143 terminated.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Entry point of the console script."""
    sys.exit(guard(lambda: app(prog_name="spiketriage", standalone_mode=False), sys.argv[1:]))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Name the cause of a loss spike from evidence, one changed factor at a time.

    Without a command: where you are, and the next command.
    """
    if version:
        show_text([__version__])
        raise typer.Exit
    if context.invoked_subcommand:
        return 0
    return show("status", status_here(), False)


@app.command()
def triage(
    run: o.Run = None,
    step: o.Step = None,
    budget: o.Budget = None,
    trust: o.Trust = False,
    allow_outside: o.AllowOutside = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Run the whole runbook in order and stop at the verdict.

    It asks at most whether the run's code may be imported, and typed again after an interruption
    it goes on from there.
    """
    from spiketriage.runbook import triage as it

    place = find_run(run, incidents)
    result = it.run(
        place,
        incidents=incidents,
        incident=incident,
        argv=called(),
        step=step,
        budget=budget,
        trust=may_import(place, is_granted=trust, as_json=as_json),
        allow_outside=allow_outside,
    )
    return show("triage", result, as_json)


@app.command()
def freeze(
    run: o.Run = None,
    step: o.Step = None,
    dry_run: o.DryRun = False,
    allow_outside: o.AllowOutside = False,
    incidents: o.Incidents = None,
    as_json: o.Json = False,
) -> int:
    """Step 1: keep the evidence, find onset and known good."""
    from spiketriage.runbook import freeze as it

    place = find_run(run, incidents)
    result = it.run(
        place,
        incidents=incidents,
        incident=None,
        argv=called(),
        step=step,
        dry_run=dry_run,
        allow_outside=allow_outside,
    )
    return show("freeze", result, as_json)


@app.command("hash")
def hash_(
    run: o.Run = None,
    cluster: o.Cluster = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 2: digest everything and name what differs.

    Every artifact is read once and compared with its manifest or with the index.
    """
    from spiketriage.runbook import hash as it
    from spiketriage.tools.cluster import executor

    place = find_run(run, incidents)
    with executor(cluster, it.reads(place) if cluster else ()) as workers:
        result = it.run(
            place, incidents=incidents, incident=incident, argv=called(), executor=workers
        )
    return show("hash", result, as_json)


@app.command()
def check(
    run: o.Run = None,
    audit: o.Audit = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 3: compare what is recorded; no step is executed.

    Ranks, steps, settings and data are compared over the whole history.
    """
    from spiketriage.runbook import check as it

    result = it.run(
        find_run(run, incidents), incidents=incidents, incident=incident, argv=called(), audit=audit
    )
    return show("check", result, as_json)


@app.command()
def replay(
    run: o.Run = None,
    repeats: o.Repeats = None,
    last: o.Last = None,
    trust: o.Trust = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 4: run the steps again; name the first difference.

    The recorded steps are executed from known good, and every link of the chain is compared.
    """
    from spiketriage.runbook import replay as it

    place = find_run(run, incidents)
    result = it.run(
        place,
        incidents=incidents,
        incident=incident,
        argv=called(),
        repeats=repeats,
        last=last,
        trust=may_import(place, is_granted=trust, as_json=as_json),
    )
    return show("replay", result, as_json)


@app.command()
def branch(
    run: o.Run = None,
    experiment: o.Experiments = None,
    factor: o.Factors = None,
    list_only: o.ListOnly = False,
    trust: o.Trust = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 5: change one factor against a control.

    Every branch proves by digest that its one factor took effect.
    """
    from spiketriage.runbook import branch as it

    place = find_run(run, incidents)
    if not list_only:
        trust = may_import(place, is_granted=trust, as_json=as_json)
    result = it.run(
        place,
        incidents=incidents,
        incident=incident,
        argv=called(),
        experiments=tuple(experiment or ()),
        factors=tuple(factor or ()),
        list_only=list_only,
        trust=trust,
    )
    return show("branch", result, as_json)


@app.command()
def bisect(
    run: o.Run = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 6: weigh the causes; say what to run next.

    The verdict comes with what speaks for it, against it, and what is untested.
    """
    from spiketriage.runbook import bisect as it

    result = it.run(find_run(run, incidents), incidents=incidents, incident=incident, argv=called())
    return show("bisect", result, as_json)


@app.command()
def report(
    run: o.Run = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 7: write the post-mortem: Markdown, HTML, JSON.

    It is made from the incident alone, and the same incident gives the same bytes.
    """
    from spiketriage.report import write as it

    result = it.run(find_run(run, incidents), incidents=incidents, incident=incident, argv=called())
    return show("report", result, as_json)


@app.command()
def status(
    run: o.Run = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Say where the incident stands and what to type next."""
    from spiketriage.runbook import status as it

    result = it.run(find_run(run, incidents), incidents=incidents, incident=incident, argv=called())
    return show("status", result, as_json)


@app.command()
def watch(run: o.Run = None, stdin: o.Stdin = False, as_json: o.Json = False) -> int:
    """Say at once when a step is out of the ordinary; a line an alarm.

    Follows a run or a log that is being written until interrupted; with --stdin, ends where the
    trace ends.
    Exit 1 if there was an alarm. With --json one object an alarm.
    """
    from spiketriage.tools import watch as it

    tell = partial(show_alarm, as_json=as_json)
    if stdin:
        return it.read(sys.stdin.buffer, tell)
    return it.follow(find_source(run), tell)


@app.command()
def inspect(
    path: o.Place, deep: o.Every = False, cluster: o.Cluster = None, as_json: o.Json = False
) -> int:
    """Say what a folder or file is, and what is wrong with it.

    Checkpoints, logs, system evidence and data stores of the usual stacks are known; nothing is
    unpickled.
    """
    from spiketriage.tools import inspect as it
    from spiketriage.tools.cluster import executor

    with executor(cluster, (path.absolute(),)) as workers:
        result = it.run(path, deep=deep, executor=workers)
    return show("inspect", result, as_json)


@app.command()
def defenses(target: o.Target = None, as_json: o.Json = False) -> int:
    """Say which stabilizers are on, and what each costs.

    In bring-up order, on, off or unknown, with the evidence; a harness is read and never run.
    """
    from spiketriage.defenses import command as it
    from spiketriage.practice.rehearsal.trainer.config import ALWAYS, OPTIONAL

    place = str(find_run(None)) if target is None else target
    return show("defenses", it.run(place, selectable=OPTIONAL, built_in=ALWAYS), as_json)


@app.command()
def documents(
    store: o.Store,
    number: o.Numbers = None,
    step: o.Consumed = None,
    batch: o.Batch = None,
    length: o.Length = None,
    vocab: o.Vocab = None,
    eos: o.Eos = None,
    pad: o.Pad = None,
    as_json: o.Json = False,
) -> int:
    """Say which documents a step consumed and which look broken.

    Each is compared with others of its length in the same store; without numbers or a step, a
    sample is profiled.
    """
    from spiketriage.tools import documents as it
    from spiketriage.tools.document_peers import Reading

    reading = Reading(vocab=vocab, eos=eos, pad=pad)
    consumed = it.step_of(step, batch, length)
    result = it.run(store, numbers=tuple(number or ()), step=consumed, reading=reading)
    return show("documents", result, as_json)


@app.command()
def verify(
    run: o.Run = None,
    deep: o.Deep = False,
    head: o.Head = "",
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Check every row of the record and every file that was kept or written."""
    from spiketriage.tools import verify as it

    result = it.run(
        find_run(run, incidents),
        incidents=incidents,
        incident=incident,
        argv=called(),
        deep=deep,
        head=head,
    )
    return show("verify", result, as_json)


@app.command()
def sql(
    statement: o.Statement,
    run: o.Run = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Ask the incident's tables a question, read-only."""
    from spiketriage.tools import sql as it

    result = it.run(
        find_run(run, incidents),
        incidents=incidents,
        incident=incident,
        argv=called(),
        statement=statement,
    )
    return show("sql", result, as_json)


app.add_typer(rehearse.app, name="rehearse")


@app.command()
def demo(out: o.DemoOut = o.DEMO_OUT, seed: o.Seed = 1, as_json: o.Json = False) -> int:
    """Rehearse one fault and triage it, start to finish."""
    from spiketriage.practice import demo as it

    return show("demo", it.run(out=out, seed=seed, argv=called()), as_json)
