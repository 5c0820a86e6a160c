"""What is planted.

Faults from inside and outside, moved by the seed, and a stage that shows through nowhere.
"""

from __future__ import annotations

import ast
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from rehearsed import Rehearsed, planted

from spiketriage.errors import UsageError
from spiketriage.practice.rehearsal import corpus, staging, trainer
from spiketriage.practice.rehearsal.catalogue import load_fault
from spiketriage.practice.rehearsal.faults import FAULTS
from spiketriage.practice.rehearsal.staging import Staging
from spiketriage.readers.telemetry.run.sources import read_telemetry

NAMES = [fault.NAME for fault in FAULTS]
SEEDS = (130, 131, 132, 133)
MAX_TEXT_BYTES = 2_000_000
FOREIGN = '''
"""A fault of somebody's own; it never trains."""
NAME, CAUSE = "late-shard", "shard-bitrot"


def plant(stage):
    """One document rots to zeros."""
    number = stage.documents_at(stage.fault_step, stage.rank)[0]
    stage.rot(number, bytes(len(stage.documents[number].data)))
'''


@pytest.fixture(scope="module")
def clean() -> dict[int, Staging]:
    return {seed: staging.prepare(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def stages() -> dict[tuple[str, int], Staging]:
    return {(name, seed): planted(name, seed) for name in NAMES for seed in SEEDS}


def fingerprint(stage: Staging, before: Staging) -> tuple[Any, ...]:
    """Everything that a plant left on the stage."""
    replaced = [
        n for n, (a, b) in enumerate(zip(stage.documents, before.documents, strict=True)) if a != b
    ]
    edits = [(edit.file, edit.new) for edit in stage.edits]
    return (
        edits,
        stage.hook_arguments,
        sorted(stage.rotten),
        replaced,
        stage.fault_step,
        stage.rank,
    )


def plants(stage: Staging, before: Staging) -> int:
    """In how many of the four ways the stage was changed."""
    edits, hook, rotten, replaced, _, _ = fingerprint(stage, before)
    return sum(bool(one) for one in (edits, hook, rotten, replaced))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_plant_follows_from_the_seed_and_moves_with_it(
    name: str, stages: dict[tuple[str, int], Staging], clean: dict[int, Staging]
) -> None:
    assert fingerprint(planted(name, SEEDS[0]), clean[SEEDS[0]]) == fingerprint(
        stages[name, SEEDS[0]], clean[SEEDS[0]]
    )
    found = [repr(fingerprint(stages[name, seed], clean[seed])) for seed in SEEDS]
    assert len(set(found)) == len(SEEDS)
    assert {plants(stages[name, seed], clean[seed]) for seed in SEEDS} == (
        {0} if name == "healthy" else {1}
    )


def test_the_stage_itself_moves_with_the_seed(clean: dict[int, Staging]) -> None:
    places = {(s.restart_step, s.crash_step, s.fault_step, s.rank) for s in clean.values()}
    assert len(places) == len(SEEDS)
    assert len({s.documents[0].data for s in clean.values()}) == len(SEEDS)
    for stage in clean.values():
        assert stage.restart_step < stage.crash_step < stage.fault_step <= stage.config.num_steps
        assert stage.restart_step % stage.config.save_every == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_change_of_code_applies_exactly_once_and_compiles(
    name: str, stages: dict[tuple[str, int], Staging], tmp_path: Path
) -> None:
    for seed in SEEDS:
        code = tmp_path / str(seed)
        shutil.copytree(
            Path(trainer.__file__).parent, code, ignore=shutil.ignore_patterns("__pycache__")
        )
        original = {path: path.read_bytes() for path in code.iterdir()}
        stage = stages[name, seed]
        edits = [staging.harmless_edit(stage.chooser), *stage.edits]
        staging.apply_edits(edits, code)
        changed = {path.name for path, data in original.items() if path.read_bytes() != data}
        assert changed == {edit.file for edit in edits}
        for path in code.iterdir():
            compile(path.read_bytes(), path, "exec")
        with pytest.raises(UsageError, match="expected 1"):
            staging.apply_edits([staging.Edit(file="main.py", old="no such text", new="")], code)


@pytest.mark.parametrize("edit", staging.HARMLESS, ids=lambda edit: f"{edit.file}-{len(edit.new)}")
def test_each_harmless_change_applies(edit: staging.Edit, tmp_path: Path) -> None:
    original = Path(trainer.__file__).parent
    code = shutil.copytree(original, tmp_path / "code")
    staging.apply_edits([edit], code)
    before, after = (
        (folder / edit.file).read_text(encoding="utf-8") for folder in (original, code)
    )
    assert before != after
    assert computes(before) == computes(after)


def computes(source: str) -> str:
    """What a module computes.

    Its syntax tree without its texts (a printed word changes no result).
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


@pytest.mark.slow
def test_rot_lies_on_disk_alone_and_the_index_keeps_saying_what_was(
    stages: dict[tuple[str, int], Staging], tmp_path: Path
) -> None:
    stage = stages["shard-bitrot", SEEDS[0]]
    staging.write_data(stage, tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    staging.let_rot(stage, tmp_path / "data")
    after = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert after["index.json"] == before["index.json"]
    assert {name: len(data) for name, data in after.items()} == {
        name: len(data) for name, data in before.items()
    }
    assert sum(after[name] != before[name] for name in before) >= 1
    consumed = set(stage.documents_at(stage.fault_step, stage.rank))
    assert set(stage.rotten) == consumed


def test_a_fault_from_outside_is_planted_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FOREIGN)
    fault = load_fault(str(path))
    assert (fault.name, fault.cause, fault.path) == ("late-shard", "shard-bitrot", path)
    stage = staging.prepare(SEEDS[1])
    fault.plant(stage)
    (number,) = stage.rotten
    assert number in stage.documents_at(stage.fault_step, stage.rank)
    assert set(stage.rotten[number]) == {0}


@pytest.mark.parametrize(
    "text", ["NAME = 'x'\nCAUSE = None\n", "def plant(stage):\n    pass\n", ""]
)
def test_a_file_that_is_no_fault_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UsageError, match="a fault needs"):
        load_fault(str(path))
    with pytest.raises(UsageError, match="found none"):
        load_fault(str(tmp_path / "absent.py"))


def test_the_texts_are_small_differ_in_kind_and_say_where_they_come_from() -> None:
    folder = Path(corpus.__file__).parent / "texts"
    texts = {path.stem: path.read_bytes() for path in folder.glob("*.txt")}
    assert set(texts) == set(corpus.WEIGHTS)
    assert len(texts) >= 3
    assert math.isclose(sum(corpus.WEIGHTS.values()), 1)
    assert sum(len(data) for data in texts.values()) <= MAX_TEXT_BYTES
    provenance = (folder / "PROVENANCE.md").read_text(encoding="utf-8")
    assert [name for name in texts if f"{name}.txt" not in provenance] == []


@pytest.mark.slow
def test_a_run_crashed_once_restarted_from_its_generation_and_learned(
    bitrot_run: Rehearsed,
) -> None:
    telemetry = read_telemetry(bitrot_run.folder / "telemetry")
    stage = bitrot_run.stage
    assert (telemetry.ranks, telemetry.attempts, telemetry.problems) == ((0, 1), (0, 1), ())
    assert telemetry.steps == tuple(range(1, staging.NUM_STEPS + 1))
    loads = {(load.attempt, load.rank, load.step, load.generation) for load in telemetry.loads}
    assert loads == {
        (1, rank, stage.restart_step, f"step-{stage.restart_step:06d}") for rank in (0, 1)
    }
    assert {
        telemetry.attempt_of(stage.restart_step),
        telemetry.attempt_of(stage.restart_step + 1),
    } == {0, 1}
    for rank in telemetry.ranks:
        lineage = telemetry.lineage(rank)
        losses = [record.metrics["loss/mean"] for record in lineage]
        assert all(math.isfinite(loss) for loss in losses)
        assert not any(record.nonfinite for record in lineage)
        settled = losses[stage.restart_step - 40 : stage.restart_step]
        assert losses[0] > math.log(256) - 0.5  # it starts from chance
        assert sum(settled) / len(settled) < 0.7 * losses[0]
