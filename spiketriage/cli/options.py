"""The options and arguments that commands share, each declared once.

This module only describes the command line; it never reads a value or touches a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        envvar="SPIKETRIAGE_RUN",
        show_default=False,
        # the command itself says what is wrong with a folder, in the same words as any other
        readable=False,
        help="Run folder; by default the folder at or above this one that holds spiketriage.toml.",
    ),
]
Statement = Annotated[
    str,
    typer.Argument(metavar="STATEMENT", show_default=False, help="One read-only SQL statement."),
]

Incident = Annotated[
    str | None,
    typer.Option(
        "--incident",
        "-i",
        metavar="ID",
        help="Incident or a unique beginning of its name; else the latest.",
    ),
]
Incidents = Annotated[
    Path | None,
    typer.Option(
        "--incidents", metavar="DIR", help="Where incidents stand when the run is read-only."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout instead of text.")]

Step = Annotated[
    int | None, typer.Option("--step", metavar="N", min=0, help="Suspect step; else it is found.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Say what would be kept; write nothing.")
]
Audit = Annotated[
    bool, typer.Option("--audit", help="Check the whole run, with or without a spike.")
]
Repeats = Annotated[
    int | None, typer.Option("--repeats", metavar="N", min=1, help="Identical replays to make.")
]
Last = Annotated[
    int | None, typer.Option("--last", metavar="STEP", min=0, help="Last step to replay.")
]
Experiments = Annotated[
    list[str] | None,
    typer.Option("--experiment", "-e", metavar="NAME", help="Experiment to run; repeatable."),
]
Factors = Annotated[
    list[str] | None,
    typer.Option("--factor", "-f", metavar="NAME=VALUE", help="The one factor to change."),
]
ListOnly = Annotated[
    bool, typer.Option("--list", help="List the experiments and their cost; run none.")
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", metavar="STEPS", min=1, help="Most training steps to execute."),
]
AllowOutside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Let the settings name places outside the run; remembered with the incident.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Let the code of the run be imported; else you are asked once for each run."
    ),
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Read every byte of evidence again and compare digests.")
]
Head = Annotated[
    str,
    typer.Option(
        "--head",
        metavar="HEX",
        show_default=False,
        help="A head of the journal that you noted: it must still be in it.",
    ),
]
Stdin = Annotated[
    bool, typer.Option("--stdin", help="Read a JSON-lines trace from standard input instead.")
]
Place = Annotated[
    Path, typer.Argument(metavar="PATH", show_default=False, help="A folder or a file of any kind.")
]
Every = Annotated[
    bool, typer.Option("--deep", help="Read every byte, however large the checkpoint is.")
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        envvar="SPIKETRIAGE_RUN",
        show_default=False,
        help="Run folder, checkpoint, configuration file, or package.module:factory; else the "
        "run at hand.",
    ),
]
Store = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", show_default=False, help="A data store: its folder or one of its files."
    ),
]
Numbers = Annotated[
    list[int] | None,
    typer.Option("--number", metavar="N", min=0, help="Document to judge, from 0; repeatable."),
]
Consumed = Annotated[
    int | None, typer.Option("--step", metavar="N", min=1, help="Step whose documents to judge.")
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="B", min=1, help="Sequences of a step, all ranks.")
]
Length = Annotated[
    int | None, typer.Option("--length", metavar="S", min=1, help="Tokens of a sequence.")
]
Vocab = Annotated[
    int | None, typer.Option("--vocab", metavar="V", min=1, help="Ids of the vocabulary: 0 to V-1.")
]
Eos = Annotated[int | None, typer.Option("--eos", metavar="E", help="The id that ends a document.")]
Pad = Annotated[int | None, typer.Option("--pad", metavar="P", help="The id of padding.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="ADDRESS", help="Have a Dask cluster read the files: tcp://HOST:PORT."
    ),
]

Fault = Annotated[
    str | None,
    typer.Option("--fault", metavar="NAME|FILE.py", show_default=False, help="Fault to plant."),
]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="NAME|FILE.py", help="Fault to score; repeatable; else all."),
]
Stabilizers = Annotated[
    list[str] | None,
    typer.Option(
        "--stabilizer",
        metavar="NAME",
        help="Stabilizer to turn on; repeatable; `defenses` names them.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Moves where and when the fault strikes.")
]
Seeds = Annotated[
    str, typer.Option("--seeds", metavar="N,N,…", help="Seeds to score, separated by commas.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", show_default=False, help="New folder for the run."),
]
DEMO_OUT = Path("demo-run")
DemoOut = Annotated[Path, typer.Option("--out", metavar="RUN", help="New folder for the run.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="DIR", help="Keep every run in this folder.")
]
