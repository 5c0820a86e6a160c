"""Tests stage no state that the product never writes: such a test proves a thing that is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from run_folder import write_run

from spiketriage.incident import store
from spiketriage.incident.session import Session
from spiketriage.runbook import freeze

TESTS = Path(__file__).parent
PRODUCT = TESTS.parent / "spiketriage"


def calls(folder: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call below `folder`, with the place where it stands."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(folder.parent)}:{node.lineno}", node


def method_of_session(call: ast.Call) -> str:
    """`findings` for `session.findings(…)`, empty for any other call."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return ""
    if function.value.id != "session":
        return ""
    return function.attr


def staged_facts(call: ast.Call) -> list[str]:
    """The keys that a call spells out: of `session.fact(key, …)` or of `facts={key: …}`."""
    keys: list[ast.expr | None] = []
    if method_of_session(call) == "fact":
        keys += call.args[:1]
    for keyword in call.keywords:
        if keyword.arg == "facts" and isinstance(keyword.value, ast.Dict):
            keys += keyword.value.keys
    named = []
    for key in keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            named.append(key.value)
    return named


def test_every_fact_that_a_test_writes_is_one_that_a_freeze_writes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    elsewhere = tmp_path / "incidents"
    freeze.run(run, incidents=elsewhere, incident=None, argv=["spiketriage", "freeze", str(run)])
    written = store.find(run, incidents=elsewhere, wanted=None).dossier().facts
    unknown = []
    for place, call in calls(TESTS):
        for key in staged_facts(call):
            if key not in written:
                unknown.append(f"{place}: {key}")
    assert unknown == []


def test_only_freeze_writes_facts() -> None:
    """So that the facts of one freeze are all that there are, as the test above takes for granted."""
    writers = set()
    for place, call in calls(PRODUCT):
        if method_of_session(call) == "fact":
            writers.add(place.partition(":")[0])
    assert writers == {"spiketriage/runbook/freeze.py"}


def test_every_kind_of_record_has_a_command_that_writes_it() -> None:
    written = {method_of_session(call) for _, call in calls(PRODUCT)}
    public = {name for name in vars(Session) if not name.startswith("_")}
    assert public - written == set()
