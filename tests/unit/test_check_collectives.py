"""The check `collectives`.

What real flight-recorder dumps show once frozen, and nothing where there is none.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import collectives
from spiketriage.diagnosis.role import AGAINST_THE_RUN
from spiketriage.diagnosis.view import RankDumps
from spiketriage.evidence.frozen import load_view
from spiketriage.evidence.rank_dumps import rank_dumps
from spiketriage.incident import store
from spiketriage.readers.events.desync import first_disagreement
from spiketriage.readers.settings import read_settings
from spiketriage.runbook import check, freeze
from spiketriage.tools import inspect

FIXTURES = Path(__file__).parents[2] / "fixtures"
EVENTS = FIXTURES / "events"


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("SPIKETRIAGE_QUIET", "1")


def run_with(folder, **dumps):
    """A run that somebody else's trainer left.

    A healthy log, and flight-recorder dumps in folders.
    """
    folder.mkdir()
    (folder / "log.csv").write_text(
        "step,loss\n" + "".join(f"{step},{2 - step / 100}\n" for step in range(1, 60))
    )
    for name, fixture in dumps.items():
        shutil.copytree(EVENTS / fixture, folder / name)
    return folder


def frozen_and_checked(run):
    freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
    return check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"])


def found_in(result):
    return [one for one in result.data["findings"] if one["name"] == "collectives"]


def test_a_frozen_desync_names_the_all_reduce_that_rank_1_left_out(tmp_path):
    run = run_with(tmp_path / "run", first="fr_healthy", second="fr_desync")
    result = frozen_and_checked(run)
    (finding,) = found_in(result)
    assert result.exit_code == 1
    assert (finding["outcome"], finding["judged"]) == ("differs", True)
    assert (finding["where"]["key"], finding["where"]["path"]) == ("0/2", "second")
    assert "collective 2 of group 0 (default_pg)" in finding["summary"]
    assert finding["expected"].startswith("gloo:all_reduce [7]")
    assert finding["seen"].startswith("rank 1: gloo:broadcast [2]")
    assert any(line.startswith("differs") and "collectives" in line for line in result.lines)

    view = load_view(store.find(run, incidents=None, wanted=None), read_settings(run))
    seen = [(one.folder, one.num_dumps, one.disagreement is not None) for one in view.dumps]
    assert seen == [
        ("first", 2, False),
        ("second", 2, True),
    ]  # two moments, not compared with each other
    (run / "first" / "aaa.log").write_text(
        "[  1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off\n"
    )
    again = load_view(store.find(run, incidents=None, wanted=None), read_settings(run))
    assert again.dumps == view.dumps  # what the run gains after the freeze changes nothing


def test_a_frozen_healthy_pair_has_nothing_against_it(tmp_path):
    result = frozen_and_checked(run_with(tmp_path / "run", dumps="fr_healthy"))
    (finding,) = found_in(result)
    assert (result.exit_code, finding["outcome"]) == (0, "agrees")


def test_without_dumps_there_is_no_finding(tmp_path):
    shutil.copy(EVENTS / "dmesg.log", tmp_path)
    assert rank_dumps(tmp_path) == rank_dumps(tmp_path / "absent") == ()
    assert collectives.run(SyntheticRun().view()) == ()


@pytest.mark.parametrize(
    ("fixture", "told"), [("fr_healthy", "one rank only"), ("fr_desync", "rank 1: left no dump")]
)
def test_one_rank_alone_proves_nothing(tmp_path, fixture, told):
    shutil.copy(EVENTS / fixture / "trace_rank_0", tmp_path)
    view = replace(SyntheticRun().view(), dumps=rank_dumps(tmp_path))
    (finding,) = collectives.run(view)
    assert finding.outcome == "not testable"
    assert told in finding.summary


def test_the_odd_one_of_three_is_named_as_the_place(tmp_path):
    found = first_disagreement(EVENTS / "fr_desync")
    most, odd = found.versions
    three = replace(found, versions=(replace(most, ranks=(0, 2)), odd))
    view = replace(
        SyntheticRun().view(), dumps=(RankDumps(folder="d", num_dumps=3, disagreement=three),)
    )
    (finding,) = collectives.run(view)
    assert (finding.where.rank, finding.magnitude) == (1, 1.0)


def test_no_cause_is_accused_or_cleared_by_it():
    assert collectives.EMITS[collectives.NAME].role == AGAINST_THE_RUN


def test_inspect_shows_the_sentence_of_a_folder_of_dumps(tmp_path):
    run = run_with(tmp_path / "run", good="fr_healthy", bad="fr_desync")
    told = [line.strip() for line in inspect.run(run).lines if line.startswith("  collectives: ")]
    assert told == [
        f"collectives: bad: {first_disagreement(EVENTS / 'fr_desync').sentence}",
        "collectives: good: the dumps of 2 ranks show no disagreement",
    ]
    (run / "good" / "trace_rank_1").unlink()
    assert sum("collectives: " in line for line in inspect.run(run).lines) == 1


def test_inspect_names_a_dump_that_could_not_be_compared(tmp_path):
    run = run_with(tmp_path / "run", bad="fr_desync")
    whole = (EVENTS / "fr_desync" / "trace_rank_1").read_bytes()
    (run / "bad" / "trace_rank_2").write_bytes(whole[: len(whole) // 2])
    lines = [line for line in inspect.run(run).lines if "not compared: " in line]
    assert len(lines) == 1
    assert "trace_rank_2" in lines[0]
