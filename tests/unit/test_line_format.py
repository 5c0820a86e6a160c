"""A console is a row of data: what a row says is what is read."""

from __future__ import annotations

import re

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.series.names import DEFAULT

CONSOLE = LineFormat(
    name="my-console",
    anchors=("it=",),
    lines=(
        LineKind(
            pattern=re.compile(r"it=(?P<step>\d+)/(?P<total>\d+) nll=(?P<loss>\S+)(?P<rest>.*)"),
            cells={"loss": "nll"},
            pairs=re.compile(r" (?P<key>\w+)=(?P<value>[\d.]+)(?P<ms>ms)?"),
            needs=frozenset({"nll"}),
            from_zero=True,
        ),
        LineKind(
            pattern=re.compile(r"eval it=(?P<step>\d+) nll=(?P<loss>\S+)"),
            cells={"loss": "nll"},
            prefix="eval ",
            is_evaluation=True,
        ),
    ),
    near=re.compile(r"\Ait=\d"),
    own={"nll": "loss/mean"},
    meanings={"nll": "in nats a token"},
    notes=("a note",),
    identity={"total": "total_steps"},
)
LOG = """it=0/9 nll=2.5 took=500ms
it=1/9 nll=2.25 took=0.25
eval it=1 nll=3.0
it=2/9 nll=oops
[rank3]: it=2/9 nll=nan
noise
it=0/9 nll=2.0
"""


@pytest.fixture
def facts(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(LOG)
    return CONSOLE.read(path, DEFAULT)


def test_cells_pairs_units_and_steps_are_as_the_row_says(facts):
    read = {}
    for series in facts.series:
        key = (series.name, series.attempt, series.rank)
        read[key] = (series.steps.tolist(), [repr(value) for value in series.values.tolist()])
    assert read == {
        ("loss/mean", 0, None): ([1, 2], ["2.5", "2.25"]),
        ("took", 0, None): ([1, 2], ["0.5", "0.25"]),
        ("eval nll", 0, None): ([1], ["3.0"]),
        ("loss/mean", 0, 3): ([3], ["nan"]),
        ("loss/mean", 1, None): ([1], ["2.0"]),
    }


def test_what_is_not_understood_is_a_near_miss_and_an_evaluation_begins_no_attempt(facts):
    assert (facts.num_matched, facts.num_near_misses) == (5, 1)
    assert facts.num_lines == 7
    assert "line 4" in facts.problems[0]
    assert facts.identity == {"total_steps": "9"}
    assert facts.notes[0] == "a note"
    assert {series.trust for series in facts.series if series.name == "loss/mean"} == {
        "in nats a token"
    }


def test_three_lines_make_it_sure_and_none_no_log_of_it(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(LOG)
    assert CONSOLE.claims(look(path)) == CONSOLE.sure
    path.write_text("nothing\n")
    assert CONSOLE.claims(look(path)) == 0.0
    with pytest.raises(EvidenceError, match="my-console"):
        CONSOLE.read(path, DEFAULT)
