"""The report says everything an incident holds in every medium.

The same incident gives the same bytes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dossiers import audit, empty, journal, spike

from spiketriage.errors import RefusedError
from spiketriage.incident import store
from spiketriage.nouns.incident import Dossier, Finding
from spiketriage.report import build, commands, words, write

EVERY_DOSSIER = pytest.mark.parametrize("make", [spike, audit, empty])
TITLES = (
    *(
        "Impact",
        "Loss and gradient norm",
        "Detection",
        "Rank agreement and first difference",
        "Findings",
    ),
    *("Experiments", "Causes", "Causal argument and repair", "Not tested and residual risk"),
    *(
        "Known-good selection",
        "Evidence",
        "Timeline",
        "Lessons and actions",
        "Reproduction appendix",
    ),
)


def files(dossier: Dossier) -> dict[str, bytes]:
    return write.render(dossier, build.build(dossier))


def strict(data: bytes) -> dict:
    def refuse(token: str) -> None:
        raise AssertionError(f"bare {token} in JSON")

    return json.loads(data, parse_constant=refuse)


@EVERY_DOSSIER
def test_every_section_is_present_in_every_medium(make):
    made = files(make())
    html, markdown = made["report.html"].decode(), made["report.md"].decode()
    for title in TITLES:
        assert f"<h2>{title}</h2>" in html
        assert f"\n## {title}\n" in markdown
    assert [section["title"] for section in strict(made["report.json"])["sections"]] == list(TITLES)


def test_an_empty_section_names_the_command_that_fills_it():
    sections = {s["key"]: s["missing"] for s in strict(files(empty())["report.json"])["sections"]}
    wanted = {
        **{"evidence": "freeze", "curves": "freeze", "findings": "check", "agreement": "check"},
        **{
            "experiments": "replay",
            "causes": "bisect",
            "argument": "bisect",
            "known-good": "freeze",
        },
    }
    for key, verb in wanted.items():
        assert sections[key]["command"].split()[:2] == ["spiketriage", verb]
        assert sections[key]["what"]


def test_the_top_of_the_report_answers_the_questions_of_3_am():
    top = files(spike())["report.html"].decode().split("<nav")[0]
    for said in (
        *("Cause: shard-bitrot", "data/shard-0003.bin", "rank 1", "Restore data/shard-0003.bin"),
        *(
            "fp32 reference: no step was executed",
            "Known good is step-000180",
            "spiketriage verify",
        ),
    ):
        assert said in top


@EVERY_DOSSIER
def test_another_process_with_another_hash_seed_writes_the_same_bytes(make, tmp_path):
    script = (
        "import sys, dossiers; from pathlib import Path; from spiketriage.report import "
        "build, write;"
        "d = getattr(dossiers, sys.argv[1])();"
        "write.write(Path(sys.argv[2]), write.render(d, build.build(d)))"
    )
    root = Path(__file__).parents[2]
    environment = {
        "PYTHONPATH": f"{root}:{root / 'tests'}",
        "PYTHONHASHSEED": "77",
        "TZ": "Asia/Tokyo",
    }
    subprocess.run(
        [sys.executable, "-c", script, make.__name__, str(tmp_path)],
        check=True,
        env={**os.environ, **environment},
    )
    written = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert written == files(make())


def test_commands_that_only_look_change_nothing():
    before = spike()
    looked = (
        *(
            "spiketriage report /runs/lm-small-07",
            "spiketriage status",
            "spiketriage",
            "python -m spiketriage sql 'FROM x'",
        ),
        "spiketriage verify /runs/lm-small-07 --incident 2026",
    )
    told = [row.argv for row in before.journal]
    assert files(replace(before, journal=journal(*told, *looked))) == files(before)
    assert files(replace(before, journal=journal(*told, "spiketriage hash /runs/report"))) != files(
        before
    )


def test_the_chain_head_is_the_last_row_that_is_told():
    rows = journal(
        "spiketriage freeze /r",
        "spiketriage check /r",
        "spiketriage report /r",
        "spiketriage status",
    )
    assert commands.chain_head(rows) == rows[1].digest
    assert rows[1].digest in files(replace(audit(), journal=rows))["report.html"].decode()


def test_json_is_strict_and_spells_out_what_is_not_finite():
    document = strict(files(spike())["report.json"])
    by_step = {(p["attempt"], p["step"]): p for p in document["steps"]}
    assert by_step[1, 205]["loss"] == "NaN"
    assert by_step[1, 205]["grad_norm"] == "Inf"
    assert by_step[1, 203]["loss"] == 9.417
    assert document["verdict"]["cause"] == "shard-bitrot"


def test_people_are_not_named():
    assert all(b"somebody" not in data for data in files(spike()).values())


def test_evidence_says_what_differs_and_what_is_missing():
    text = files(spike())["report.md"].decode()
    assert "differs: expected 9b74c9897bac770ffc029102a200c5de" in text
    assert "collector timed out" in text
    assert "6 items" in text
    assert "2 items have a gap or differ" in text


def test_the_first_difference_is_the_earliest_judged_one():
    earlier = replace(spike().findings[2], where=replace(spike().findings[2].where, step=202))
    dossier = replace(spike(), findings=(*spike().findings, earlier))
    lead = next(s for s in build.build(dossier).sections if s.key == "agreement").paragraphs[0]
    assert lead.startswith("First difference: step 202 · rank 1 · activations blocks.3.mlp#0")


def test_each_newer_generation_is_refused_with_its_reason():
    section = next(s for s in build.build(spike()).sections if s.key == "known-good")
    shown = [(row.cells[0], row.cells[1]) for row in section.tables[0].rows]
    assert shown == [
        *(("step-000240", "refused"), ("step-000220", "refused"), ("step-000200", "refused")),
        *(("step-000180", "known good"), ("step-000160", "older good")),
    ]
    assert (
        section.tables[0].rows[2].cells[2]
        == "tensors/__1_0.distcp: digest differs from MANIFEST.json"
    )


def test_a_trial_shows_only_the_factors_that_differ_from_production():
    section = next(s for s in build.build(spike()).sections if s.key == "experiments")
    assert [row.cells[3] for row in section.tables[0].rows] == [
        *(
            "none: production's own",
            "none: production's own",
            "batch = step 197",
            "loader = verified",
        ),
    ]


def test_a_repair_is_not_called_proven():
    assert "correlated only" in files(spike())["report.md"].decode()


def test_a_report_of_a_real_incident_is_written_twice_with_the_same_bytes(tmp_path):
    source = spike()
    found = store.create(
        tmp_path, incidents=None, step=203, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC)
    )
    with found.session(["spiketriage", "freeze", str(tmp_path)]) as session:
        session.fact("run_id", "lm-small-07")
        session.anchors(source.anchors)
        session.artifacts(source.artifacts)
        session.findings(source.findings)
        session.trials(source.trials)
        session.steps(source.steps)
        session.verdict(source.verdict)
    written = []
    for argv in (
        ["spiketriage", "report", str(tmp_path)],
        ["spiketriage", "triage", str(tmp_path)],
    ):
        result = write.run(tmp_path, incidents=None, incident=None, argv=argv)
        folder = found.folder / "report"
        written.append(
            {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        )
    assert written[0] == written[1]
    assert set(written[0]) == {
        *("report.html", "report.json", "report.md", "plots/loss.svg", "plots/grad-norm.svg"),
    }
    assert result.verdict == "established"
    assert Path(result.data["report"]["html"]).read_bytes() == written[0]["report.html"]
    assert math.isnan(next(p.loss for p in found.dossier().steps if p.step == 205))


def test_a_run_without_an_incident_is_refused_with_a_hint(tmp_path):
    with pytest.raises(RefusedError) as caught:
        write.run(tmp_path, incidents=None, incident=None, argv=["spiketriage", "report"])
    assert caught.value.hint.startswith("spiketriage freeze")


def test_what_the_verdict_does_not_speak_of_is_said_below_it():
    damaged = Finding(
        name="generation-digests", outcome="differs", summary="differ: step-000100", judged=False
    )
    quiet = replace(spike(), findings=tuple(one for one in spike().findings if one.judged))
    top = (
        files(replace(quiet, findings=(*quiet.findings, damaged)))["report.html"]
        .decode()
        .split("<nav")[0]
    )
    assert "<b>Besides:</b> generation-digests: differ: step-000100" in top
    assert "Besides" not in files(quiet)["report.html"].decode()


def test_equal_alarms_of_neighbouring_steps_are_one_row():
    calm = [replace(point, alarm="") for point in audit().steps]
    at = calm[10].step
    told = {
        step: f"step {step}: grad_norm is not a finite number"
        for step in (at, at + 1, at + 2, at + 5)
    }
    dossier = replace(audit(), steps=tuple(replace(p, alarm=told.get(p.step, "")) for p in calm))
    section = next(s for s in build.build(dossier).sections if s.key == "detection")
    assert [row.cells[0] for row in section.tables[1].rows] == [f"{at}–{at + 2}", str(at + 5)]
    assert (
        section.tables[1].rows[0].cells[2]
        == f"steps {at}–{at + 2}: grad_norm is not a finite number"
    )


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("every replay agrees", "Every replay agrees."),
        ("blocks.3.mlp is odd", "blocks.3.mlp is odd."),
        ("step 3: loss is odd. And more", "Step 3: loss is odd."),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name(said, shown):
    assert words.first_sentence(said) == shown


def test_the_summary_names_the_suspect_step_once_and_no_infinite_scale():
    anchors = replace(
        spike().anchors, onset=203, suspect=203, reason="step 203: loss 9.4 is above the median 2.1"
    )
    wild = Finding(
        name="skip-batch",
        outcome="differs",
        summary="anomalous (inf scales off at most)",
        seen="inf scales",
    )
    made = build.build(replace(spike(), anchors=anchors, findings=(*spike().findings, wild)))
    assert made.banner.summary[0] == "Step 203 is suspect: loss 9.4 is above the median 2.1."
    assert "inf scales" not in str(made)


def test_the_next_command_keeps_the_folders_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = store.create(
        Path("run"), incidents=Path("inc"), step=203, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC)
    )
    with found.session(["spiketriage", "freeze", "run"]) as session:
        session.fact("run", "/runs/run")
        session.fact("incidents", "/else where/inc")
        session.artifacts(spike().artifacts)
    result = write.run(
        Path("run"), incidents=Path("inc"), incident=None, argv=["spiketriage", "report"]
    )
    assert result.next_commands == (f"spiketriage hash run --incidents inc --incident {found.id}",)
    text = Path(result.data["report"]["md"]).read_text()
    assert f"spiketriage hash /runs/run --incidents '/else where/inc' --incident {found.id}" in text


def test_plots_that_no_longer_apply_are_dropped_and_other_files_are_kept(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "loss-zoom.svg").write_text("old")
    (tmp_path / "notes.md").write_text("ours")
    write.write(tmp_path, files(spike()))
    assert not (tmp_path / "plots" / "loss-zoom.svg").exists()
    assert (tmp_path / "notes.md").read_text() == "ours"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "report").write_text("a file stands where the folder should be")
    with pytest.raises(RefusedError, match="report cannot be written"):
        write.write(tmp_path / "report", files(empty()))
