"""Records of tensor hashes by rank: where replicas part, and what never was a replica."""

import json
from dataclasses import replace

import pytest
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import replica_hashes
from spiketriage.readers.events import tensor_hashes
from spiketriage.readers.events.folder import read_events
from spiketriage.readers.events.sources import SOURCES
from spiketriage.readers.look import best, look


def record(rank, step, name, digest, **more):
    return {"name": name, "step": step, "hash": digest, "shape": [4, 4], "rank": rank, **more}


def healthy(ranks=4, steps=6, **more):
    return [
        record(rank, step, name, f"{name}@{step}", **more)
        for step in range(steps)
        for rank in range(ranks)
        for name in ("w", "b")
    ]


@pytest.fixture
def events_of(tmp_path):
    def read(records, name="trace.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in records))
        return list(read_events(tmp_path))

    return read


def changed(records, rank, name, since):
    return [
        {**one, "hash": f"{one['hash']}!"}
        if (one["rank"], one["name"]) == (rank, name) and one["step"] >= since
        else one
        for one in records
    ]


def test_replicas_that_agree_are_no_event(events_of):
    assert events_of(healthy()) == []


def test_the_first_step_tensor_and_rank_that_part_are_named(events_of):
    (event,) = events_of(changed(healthy(), 2, "w", since=3))
    assert (event.kind, event.severity) == ("replicas-differ", "error")
    assert (event.step, event.rank) == (3, 2)
    assert "1 tensor (w)" in event.sentence


def test_a_difference_from_the_start_is_told_apart_and_hides_no_later_one(events_of):
    records = changed(changed(healthy(), 1, "b", since=0), 3, "w", since=4)
    start, later = events_of(records)
    assert (start.kind, start.severity, start.step) == ("replicas-differ-at-start", "warning", 0)
    assert (later.kind, later.step, later.rank) == ("replicas-differ", 4, 3)


def test_shards_are_no_replicas(events_of):
    declared = changed(healthy(sharded=True), 2, "w", since=3)
    assert events_of(declared) == []
    other_shapes = [{**one, "shape": [one["rank"], 4]} for one in changed(healthy(), 2, "w", 3)]
    assert events_of(other_shapes) == []


def test_a_file_a_rank_is_compared_across_the_folder_and_told_once(tmp_path):
    records = changed(healthy(), 2, "w", since=3)
    for rank in range(4):
        lines = [json.dumps({key: value for key, value in one.items() if key != "rank"})
                 for one in records if one["rank"] == rank]  # fmt: skip
        (tmp_path / f"hashes_rank{rank}.jsonl").write_text("\n".join(lines))
    (event,) = read_events(tmp_path)
    assert (event.step, event.rank) == (3, 2)


def test_nested_records_as_traincheck_writes_them_and_broken_lines(tmp_path):
    path = tmp_path / "trace.json"
    nested = [
        {
            "var_name": one["name"],
            "meta_vars": {"step": one["step"], "rank": one["rank"]},
            "attributes": {"data": one["hash"], "shape": one["shape"]},
        }
        for one in changed(healthy(), 0, "b", since=5)
    ]
    lines = [json.dumps(one) for one in nested]
    path.write_text("\n".join([*lines[:9], '{"var_name": 3', "[" * 50_000, *lines[9:]]))
    assert best(SOURCES, look(path))[0] is tensor_hashes
    (event,) = tensor_hashes.read(path).events
    assert (event.step, event.rank) == (5, 0)


def test_a_step_that_parts_replicas_accuses_and_a_difference_from_the_start_is_context(events_of):
    own = SyntheticRun().view()
    parted = replace(own, events=tuple(events_of(changed(healthy(), 2, "w", since=3))))
    (found,) = replica_hashes.run(parted)
    assert (found.outcome, found.where.step, found.judged) == ("differs", 3, True)
    start = replace(own, events=tuple(events_of(changed(healthy(), 2, "w", since=0))))
    assert not replica_hashes.run(start)[0].judged
    assert replica_hashes.run(own) == ()
    both = changed(changed(healthy(), 1, "b", since=0), 3, "w", since=4)
    (found,) = replica_hashes.run(replace(own, events=tuple(events_of(both))))
    assert (found.where.step, found.judged) == (4, True)
