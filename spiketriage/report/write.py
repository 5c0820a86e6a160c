"""The `report` step: the incident in, `report/report.{md,html,json}` and `report/plots/*.svg` out.

It writes nowhere but in the incident's `report/` folder, and never a half-written file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from spiketriage import durable
from spiketriage.digests import sha256_of_bytes
from spiketriage.errors import Exit, RefusedError
from spiketriage.incident import next_step, store
from spiketriage.incident.progress import verb
from spiketriage.nouns.incident import Dossier, StepResult
from spiketriage.report import build, curves, html, json_report, markdown
from spiketriage.report.model import Report

FOLDER = "report"  # below the incident's


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]
) -> StepResult:
    """Write the report of an incident.

    Raises:
        RefusedError: there is no incident, or its folder cannot be written.
        EvidenceError: the incident cannot be read.
        BusyError: another command holds the incident.

    """
    opened = store.find(run_folder, incidents=incidents, wanted=incident)
    # Journalled as `report` even when `triage` calls it: a row that is shown would change the next
    # report.
    if verb(" ".join(argv)) == "report":
        typed = argv
    else:
        typed = ("spiketriage", "report", str(run_folder))
    with opened.session(typed) as session:
        dossier = opened.dossier()
        report = build.build(dossier)
        folder = opened.folder / FOLDER
        session.begin_writing([FOLDER])
        files = render(dossier, report)
        write(folder, files)
        session.wrote({f"{FOLDER}/{name}": sha256_of_bytes(data) for name, data in files.items()})
        dropped = [f"{FOLDER}/plots/{name}.svg" for name in curves.FIGURE_NAMES]
        session.removed(path for path in dropped if path.removeprefix(f"{FOLDER}/") not in files)
        session.exit_code = Exit.DONE
    return _result(opened.id, folder, report, _following(dossier, run_folder, incidents, opened.id))


def _following(dossier: Dossier, run_folder: Path, incidents: Path | None, incident: str) -> str:
    """The next command with the folders as they were typed.

    The report itself names them in full.
    """
    step = next_step.in_report(dossier)
    if step.startswith("spiketriage "):
        return step
    if step == "freeze":
        return next_step.command(step, run_folder, incidents)
    return next_step.command(step, run_folder, incidents, incident)


def render(dossier: Dossier, report: Report) -> dict[str, bytes]:
    """Every file of the report by its path below `report/`, what a reader opens last."""
    figures = [figure for section in report.sections for figure in section.figures]
    texts = {f"plots/{figure.name}.svg": html.standalone(figure) for figure in figures}
    texts["report.json"] = json_report.render(dossier, report)
    texts["report.md"] = markdown.render(report)
    texts["report.html"] = html.render(report)
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put `files` below `folder`, each as a whole, and drop plots that no longer apply.

    Raises:
        RefusedError: the folder cannot be written.
        DiskFullError: its disk is full.

    """
    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            durable.write(folder / name, data)
        for name in curves.FIGURE_NAMES:
            if f"plots/{name}.svg" not in files:
                (folder / "plots" / f"{name}.svg").unlink(missing_ok=True)
        for parent in (folder / "plots", folder):
            durable.sync(parent)
    except OSError as error:
        if error.errno in durable.FULL:
            raise durable.disk_full(folder, sum(map(len, files.values()))) from error
        raise RefusedError(
            f"{folder}: the report cannot be written: {error.strerror or error}",
            hint=f"ls -ld {shlex.quote(str(folder))}",
        ) from error


def _result(incident: str, folder: Path, report: Report, following: str) -> StepResult:
    banner = report.banner
    paths = {kind: str(folder / f"report.{kind}") for kind in ("html", "md", "json")}
    lacking = [section.key for section in report.sections if section.missing is not None]
    lines = [f"{banner.verdict}: {banner.headline.removeprefix('Cause: ')}"]
    lines += [f"{kind:<5}{path}" for kind, path in paths.items()]
    if lacking:
        lines.append(f"sections that are still empty: {', '.join(lacking)}")
    return StepResult(
        incident=incident,
        exit_code=Exit.DONE,
        verdict=banner.verdict,
        lines=tuple(lines),
        data={"report": paths, "missing": lacking, "chain_head": report.chain_head},
        next_commands=(following,),
    )
