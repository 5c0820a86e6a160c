"""Whatever is edited in an incident, `verify` finds it: every table, view and file of a real one.

The incident is a triaged rehearsal, with trials and a report.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import call
from rehearsed import Rehearsed
from tampering import ALL_TABLES, DEFINITIONS, KINDS, cells_of_tables, files, flip

from spiketriage.incident import store
from spiketriage.tools import verify

pytestmark = pytest.mark.slow


def test_verify_finds_every_edit_of_a_row_a_definition_or_a_byte(
    bitrot_run: Rehearsed, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(bitrot_run.folder, run)
    triaged = call("triage", str(run), "--trust", cwd=tmp_path)
    assert triaged.returncode == 0, triaged.stderr
    incident = store.find(run, incidents=None, wanted=None)
    cells = list(cells_of_tables(run, incident))
    assert len(cells) == len(ALL_TABLES) * len(KINDS) + len(DEFINITIONS)
    paths = files(incident)
    folders = {path.relative_to(incident.folder).parts[0] for path in paths}
    assert folders == {"evidence", "trials", "report"}
    cells += [flip(run, incident, path, number * 7919) for number, path in enumerate(paths)]
    assert [cell for cell in cells if not cell.found] == []
    whole = verify.run(run, incidents=None, incident=None, argv=["spiketriage"], deep=True)
    assert whole.verdict == "intact"


def test_a_head_that_was_noted_tells_a_record_that_was_written_anew(
    bitrot_run: Rehearsed, tmp_path: Path
) -> None:
    place = ("--incidents", str(tmp_path / "incidents"))
    assert call("freeze", str(bitrot_run.folder), *place, cwd=tmp_path).returncode in (0, 6)
    incident = store.find(bitrot_run.folder, incidents=tmp_path / "incidents", wanted=None)
    head = incident.dossier().journal[-1].digest
    verified = call("verify", str(bitrot_run.folder), *place, "--head", head, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout
    assert head in verified.stdout
    other = call("verify", str(bitrot_run.folder), *place, "--head", "0" * 64, cwd=tmp_path)
    assert other.returncode == 4
    assert "that --head names" in other.stdout
