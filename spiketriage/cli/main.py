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
from spiketriage.cli.entry import guard
from spiketriage.cli.place import called, find_run, standing
from spiketriage.cli.show import show, show_text

app = typer.Typer(
    name="spiketriage",
    help="Name the cause of a loss spike from evidence, one changed factor at a time.",
    epilog="Exit codes: 0 holds, 1 found something against, 2 usage, 3 refused, 4 integrity, 5 inconclusive, "
    "6 partial, 7 child failed, 8 busy, 70 bug, 130 interrupted, 143 terminated.",
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
    return 0 if context.invoked_subcommand else show("status", standing(), False)


@app.command()
def triage(
    run: o.Run = None,
    step: o.Step = None,
    budget: o.Budget = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Run the whole runbook in order, without a question, and stop at the verdict."""
    from spiketriage.runbook import triage as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called(), step=step, budget=budget)
    return show("triage", result, as_json)


@app.command()
def freeze(
    run: o.Run = None,
    step: o.Step = None,
    dry_run: o.DryRun = False,
    incidents: o.Incidents = None,
    as_json: o.Json = False,
) -> int:
    """Step 1: keep the evidence, find the onset and pick the known-good generation."""
    from spiketriage.runbook import freeze as it

    place = find_run(run)
    result = it.run(place, incidents=incidents, incident=None, argv=called(), step=step, dry_run=dry_run)
    return show("freeze", result, as_json)


@app.command("hash")
def hash_(
    run: o.Run = None, incidents: o.Incidents = None, incident: o.Incident = None, as_json: o.Json = False
) -> int:
    """Step 2: digest every artifact in one read pass and name what differs from manifest or index."""
    from spiketriage.runbook import hash as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called())
    return show("hash", result, as_json)


@app.command()
def check(
    run: o.Run = None,
    audit: o.Audit = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 3: compare ranks, steps, settings and data on record; no step is executed."""
    from spiketriage.runbook import check as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called(), audit=audit)
    return show("check", result, as_json)


@app.command()
def replay(
    run: o.Run = None,
    repeats: o.Repeats = None,
    last: o.Last = None,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 4: execute the recorded steps again from known good and name the first link that differs."""
    from spiketriage.runbook import replay as it

    place = find_run(run)
    result = it.run(place, incidents=incidents, incident=incident, argv=called(), repeats=repeats, last=last)
    return show("replay", result, as_json)


@app.command()
def branch(
    run: o.Run = None,
    experiment: o.Experiments = None,
    factor: o.Factors = None,
    list_only: o.ListOnly = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Step 5: change exactly one factor against a control, and prove that it took effect."""
    from spiketriage.runbook import branch as it

    place, chosen, factors = find_run(run), tuple(experiment or ()), tuple(factor or ())
    asked = partial(it.run, experiments=chosen, factors=factors, list_only=list_only)
    result = asked(place, incidents=incidents, incident=incident, argv=called())
    return show("branch", result, as_json)


@app.command()
def bisect(
    run: o.Run = None, incidents: o.Incidents = None, incident: o.Incident = None, as_json: o.Json = False
) -> int:
    """Step 6: weigh the causes against all findings; say for, against, untested, and what to run next."""
    from spiketriage.runbook import bisect as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called())
    return show("bisect", result, as_json)


@app.command()
def report(
    run: o.Run = None, incidents: o.Incidents = None, incident: o.Incident = None, as_json: o.Json = False
) -> int:
    """Step 7: write the post-mortem as Markdown, one HTML file and JSON, from the incident alone."""
    from spiketriage.report import write as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called())
    return show("report", result, as_json)


@app.command()
def status(
    run: o.Run = None, incidents: o.Incidents = None, incident: o.Incident = None, as_json: o.Json = False
) -> int:
    """Say where the incident stands and what to type next."""
    from spiketriage.runbook import status as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called())
    return show("status", result, as_json)


@app.command()
def verify(
    run: o.Run = None,
    deep: o.Deep = False,
    incidents: o.Incidents = None,
    incident: o.Incident = None,
    as_json: o.Json = False,
) -> int:
    """Check the journal's chain and the evidence's digests."""
    from spiketriage.runbook import verify as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called(), deep=deep)
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
    from spiketriage.runbook import sql as it

    result = it.run(find_run(run), incidents=incidents, incident=incident, argv=called(), statement=statement)
    return show("sql", result, as_json)


app.add_typer(rehearse.app, name="rehearse")


@app.command()
def demo(out: o.DemoOut = o.DEMO_OUT, seed: o.Seed = 1, as_json: o.Json = False) -> int:
    """Rehearse one fault and triage it, start to finish."""
    from spiketriage.practice import demo as it

    return show("demo", it.run(out=out, seed=seed, argv=called()), as_json)
