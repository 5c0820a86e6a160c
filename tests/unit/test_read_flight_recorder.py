"""Flight-recorder dumps.

What a rank had not finished, and the first collective on which ranks disagree.
"""

import json
import os
import pickle
from pathlib import Path

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.readers.events import flight_recorder
from spiketriage.readers.events.desync import first_disagreement
from spiketriage.readers.look import look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "events"


def entry(
    sequence,
    name="nccl:all_reduce",
    sizes=((4,),),
    dtypes=("Float",),
    state="completed",
    group="0",
    **more,
):
    return {
        "record_id": sequence,
        "process_group": (group, "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": name,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": list(dtypes),
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        "time_created_ns": 1_790_000_000_000_000_000 + sequence,
        "frames": [
            {"filename": "/x/torch/d.py", "line": 1, "name": "f"},
            {"filename": "t.py", "line": 7, "name": "g"},
        ],
    } | more


@pytest.fixture
def run(tmp_path):
    """Writes one dump a rank and gives the folder."""

    def written(of_ranks, world=None, groups=None):
        world = len(of_ranks) if world is None else world
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}} | (
            groups or {}
        )
        for rank, entries in of_ranks.items():
            dump = {
                "version": "2.10",
                "comm_lib_version": "",
                "pg_config": groups,
                "pg_status": {},
                "entries": entries,
            }
            (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
        return tmp_path

    return written


@pytest.mark.parametrize("name", ["fr_desync/trace_rank_0", "fr_desync_json/trace_rank_0.json"])
def test_a_real_dump_names_the_collectives_that_never_ended(name):
    facts = flight_recorder.read(FIXTURES / name)
    assert [(event.code, event.rank, event.kind) for event in facts.events] == [
        (2, 0, "unfinished-collective"),
        (3, 0, "unfinished-collective"),
    ]
    assert 'gloo:all_reduce [7] "Float"' in facts.events[0].sentence
    assert facts.events[0].time_s == pytest.approx(float(facts.events[0].at), abs=1e-5)
    assert flight_recorder.claims(look(FIXTURES / name)) >= 0.9


def test_a_real_healthy_pair_agrees_and_has_nothing_unfinished():
    assert first_disagreement(FIXTURES / "fr_healthy") is None
    assert flight_recorder.read(FIXTURES / "fr_healthy" / "trace_rank_1").events == ()


@pytest.mark.parametrize("folder", ["fr_desync", "fr_desync_json"])
def test_real_dumps_show_the_all_reduce_that_rank_1_left_out(folder):
    found = first_disagreement(FIXTURES / folder)
    assert (found.sequence, found.aspect, found.process_group) == (2, "name", "0")
    assert [(version.what.split()[0], version.ranks) for version in found.versions] == [
        ("gloo:all_reduce", (0,)),
        ("gloo:broadcast", (1,)),
    ]


def test_the_majority_comes_first_and_the_odd_rank_is_named(run):
    good, odd = [entry(1), entry(2)], [entry(1), entry(2, sizes=((5,),))]
    found = first_disagreement(run({rank: odd if rank == 2 else good for rank in range(4)}))
    assert found.aspect == "sizes"
    assert [version.ranks for version in found.versions] == [(0, 1, 3), (2,)]
    assert "ranks 0-1, 3" in found.sentence
    assert "t.py:7 in g" in found.sentence


@pytest.mark.parametrize(
    ("other", "aspect"),
    [
        ([entry(1), entry(2, name="nccl:broadcast")], "name"),
        ([entry(1), entry(2, sizes=((4, 1),))], "sizes"),
        ([entry(1), entry(2, dtypes=("BFloat16",))], "dtypes"),
        ([entry(1)], "absent"),
        ([], "absent"),
        ([entry(1), entry(2, state="started")], "state"),
    ],
)
def test_each_way_to_disagree(run, other, aspect):
    found = first_disagreement(run({0: [entry(1), entry(2)], 1: other}))
    assert (found.aspect, found.sequence) == (aspect, 2 if other else 1)
    assert found.absent == ((1,) if aspect == "absent" else ())


def test_a_rank_without_a_dump_is_named_when_the_others_wait(run):
    found = first_disagreement(
        run({0: [entry(1), entry(2, state="started")], 2: [entry(1), entry(2, state="started")]}, 3)
    )
    assert (found.aspect, found.sequence) == ("no-dump", 2)
    assert found.sentence.endswith("; rank 1: left no dump")


def test_all_waiting_on_the_same_collective_is_no_disagreement(run):
    assert (
        first_disagreement(run({rank: [entry(1), entry(2, state="started")] for rank in range(2)}))
        is None
    )


def test_what_a_ring_has_forgotten_is_not_held_against_a_rank(run):
    assert (
        first_disagreement(
            run({0: [entry(n) for n in range(1, 9)], 1: [entry(n) for n in range(5, 9)]})
        )
        is None
    )


@pytest.mark.parametrize(
    "name", ["nccl:all_to_all", "nccl:scatter", "nccl:gather", "nccl:_all_to_all_v"]
)
def test_collectives_of_uneven_shares_may_differ_in_size(run, name):
    assert (
        first_disagreement(run({0: [entry(1, name=name)], 1: [entry(1, name=name, sizes=((9,),))]}))
        is None
    )


def test_point_to_point_calls_are_left_out(run):
    send = entry(7, name="nccl:send", state="started", is_p2p=True)
    folder = run({0: [entry(1), send], 1: [entry(1)]})
    assert first_disagreement(folder) is None
    assert flight_recorder.read(folder / "nccl_trace_rank_0").events == ()


def test_the_earliest_of_several_groups_is_told(run):
    late = [entry(1), entry(50, group="1", name="nccl:a")]
    folder = run(
        {
            0: [*late, entry(9, sizes=((1,),))],
            1: [entry(1), entry(50, group="1", name="nccl:b"), entry(9)],
        },
        groups={"1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"}},
    )
    assert first_disagreement(folder).sequence == 9


def test_a_pickle_and_a_json_dump_of_one_job_compare(run):
    folder = run({0: [entry(1)]}, 2)
    dump = {"version": "2.10", "comm_lib_version": "", "pg_config": {}, "entries": [entry(1)]}
    (folder / "nccl_trace_rank_1.json").write_text(json.dumps(dump))
    assert first_disagreement(folder) is None


class Evil:
    def __reduce__(self):
        return os.system, ("touch PLANTED",)


def test_a_dump_that_names_a_function_is_refused_and_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(
        pickle.dumps(
            {"version": "2.10", "pg_config": {}, "comm_lib_version": "", "entries": [Evil()]}
        )
    )
    with pytest.raises(EvidenceError, match="system"):
        flight_recorder.read(path)
    with pytest.raises(EvidenceError, match="no flight-recorder dump"):
        first_disagreement(tmp_path)
    assert not (tmp_path / "PLANTED").exists()


def test_a_broken_dump_next_to_good_ones_is_told(run):
    folder = run({0: [entry(1), entry(2)], 1: [entry(1)]})
    whole = (folder / "nccl_trace_rank_1").read_bytes()
    (folder / "nccl_trace_rank_2").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("not a dump")
    found = first_disagreement(folder)
    assert found.aspect == "absent"
    assert len(found.problems) == 1
    assert "nccl_trace_rank_2" in found.problems[0]


def test_a_million_entries_are_bounded(tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    dump = {
        "version": "2.10",
        "comm_lib_version": "",
        "pg_config": {},
        "entries": [entry(1)] * 10**6,
    }
    path.write_bytes(pickle.dumps(dump))
    facts = flight_recorder.read(path)
    assert facts.identity["num_collectives"] == str(flight_recorder.MAX_ENTRIES)
    assert "only the last" in facts.problems[0]


def test_cycles_and_wrong_types_inside_are_problems(tmp_path):
    cycle = []
    cycle.append(cycle)
    bad = {
        "process_group": cycle,
        "collective_seq_id": 1,
        "input_sizes": [cycle, [cycle]],
        "frames": cycle,
    }
    path = tmp_path / "nccl_trace_rank_0"
    dump = {
        "version": cycle,
        "comm_lib_version": "",
        "pg_config": {"0": {"ranks": cycle}},
        "entries": [cycle, 3, bad],
    }
    path.write_bytes(pickle.dumps(dump))
    facts = flight_recorder.read(path)
    assert len(facts.problems) == 2
    assert len(facts.events) == 1


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"entries": 3, "version": 1}', pickle.dumps([1]), b"\x80\x02garbage"]
)
def test_what_is_no_dump_is_refused(tmp_path, data):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(EvidenceError):
        flight_recorder.read(path)


def test_a_folder_without_dumps_is_said(tmp_path):
    with pytest.raises(EvidenceError, match="no flight-recorder dump"):
        first_disagreement(tmp_path)
    with pytest.raises(EvidenceError, match="cannot be listed"):
        first_disagreement(tmp_path / "absent")


def test_a_dump_of_lists_that_hold_2_to_the_60_items_is_told_by_their_type(tmp_path):
    shared: list = [[]]
    for _ in range(60):
        shared.append([shared[-1], shared[-1]])
    bomb = shared[-1]
    entry = {
        "process_group": [bomb, bomb],
        "collective_seq_id": 1,
        "state": bomb,
        "profiling_name": bomb,
        "input_sizes": bomb,
        "frames": [{"filename": bomb, "name": bomb}],
    }
    path = tmp_path / "trace_rank_0"
    path.write_bytes(
        pickle.dumps(
            {"version": bomb, "entries": [entry], "pg_config": {"a": bomb}, "pg_status": bomb}
        )
    )
    facts = flight_recorder.read(path)
    assert facts.identity["version"] == "<list>"
    assert facts.events[0].sentence.startswith("collective 1 of group <list> (<list>), <list> ")
