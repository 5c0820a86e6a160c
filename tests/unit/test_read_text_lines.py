"""Text logs as they really are.

Colours, progress bars, prefixes, torn ends, foreign encodings, endless lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.consoles import log_points, nanogpt_stdout
from spiketriage.readers.telemetry.consoles.rank_tree import Placement, placement
from spiketriage.readers.telemetry.consoles.text_lines import TextLines, peel
from spiketriage.readers.telemetry.series import lines as line_reader
from spiketriage.readers.telemetry.series.lines import BLOCK_BYTES, MAX_LINE_CHARS
from spiketriage.readers.telemetry.series.names import DEFAULT


def lines_of(tmp_path, data, *wanted):
    path = tmp_path / "run.log"
    path.write_bytes(data)
    lines = TextLines(path, wanted or ("",))
    return lines, list(lines)


@pytest.mark.parametrize(
    ("raw", "text", "rank"),
    [
        ("[default7]: iteration 1", "iteration 1", 7),
        ("12: iteration 1", "iteration 1", 12),
        (" 3: [default1]:iteration 1", "iteration 1", 3),
        ("[rank3]: iteration 1", "iteration 1", 3),
        ("(RayWorker pid=4211, ip=10.0.0.3) iteration 1", "iteration 1", None),
        ("(TrainWorker pid=4211) [rank2]: iteration 1", "iteration 1", 2),
        ("[2026-08-22 03:14:15.926535] iteration 1", "iteration 1", None),
        ("[titan] 2026-08-22 03:14:15,926 - root - INFO - step: 1", "step: 1", None),
        ("[2021-06-10 20:47:51,885] [INFO] [logging.py:60:log_dist] [Rank 5] step=0", "step=0", 5),
        ("INFO: step: 1", "step: 1", None),
        ("2026-08-22T03:14:15Z step: 1", "step: 1", None),
        ("  plain: line", "plain: line", None),
        ("step: 12 loss: 3", "step: 12 loss: 3", None),
        ("[1, 2, 3]", "[1, 2, 3]", None),
    ],
)
def test_prefixes_of_launchers_and_loggers_are_peeled_and_name_the_rank(raw, text, rank):
    line = peel(raw)
    assert (line.text, line.rank) == (text, rank)
    assert bool(line.notion) == (rank is not None)


def test_three_notions_of_rank_are_told_apart():
    notions = {peel(raw).notion for raw in ("[default7]: x", "12: x", "[rank3]: x", "[Rank 3] x")}
    assert len(notions) == 4


def test_every_state_of_a_progress_bar_is_offered_and_the_last_one_counts(tmp_path):
    lines, found = lines_of(tmp_path, b"a\r 10%|#\r 20%|##\r{'loss': 1}\nb\n")
    assert [(line.number, line.text, line.overwritten) for line in found] == [
        (1, "a", True),
        (1, "10%|#", True),
        (1, "20%|##", True),
        (1, "{'loss': 1}", False),
        (2, "b", False),
    ]
    assert lines.num_lines == 5


def test_windows_line_ends_are_no_progress_bar(tmp_path):
    _, found = lines_of(tmp_path, b"a\r\nb\r\nc\r\r\n")
    assert [(line.text, line.overwritten) for line in found] == [
        ("a", False),
        ("b", False),
        ("c", False),
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig"])
def test_windows_captures_are_text_too(tmp_path, encoding):
    text = (
        "iter 0: loss 2.5, time 1.00ms, mfu -100.00%\r\niter 10: loss 2.25, time 1.00ms, mfu "
        "3.00%\r\n"
    )
    path = tmp_path / "run.log"
    path.write_bytes(text.encode(encoding))
    assert nanogpt_stdout.claims(look(path)) > 0
    (loss,) = [one for one in nanogpt_stdout.read(path, DEFAULT).series if one.name == "loss/mean"]
    assert loss.values.tolist() == [2.5, 2.25]


def test_colours_cursor_movements_and_titles_are_stripped(tmp_path):
    _, found = lines_of(
        tmp_path,
        b"\x1b[2J\x1b[38;2;180;0;0mstep: \x1b[39m 5\x1b]0;title\x07 \x1b[31mloss: 1\x1b[0m\n",
        "step:",
    )
    assert found[0].text == "step:  5 loss: 1"


def test_a_number_that_the_end_of_the_file_may_have_cut_is_left_out(tmp_path):
    lines, found = lines_of(tmp_path, b"s:1 trl:3.25\ns:2 trl:3.2")
    assert [(line.text, line.torn) for line in found] == [
        ("s:1 trl:3.25", False),
        ("s:2 trl:", True),
    ]
    assert lines.torn_at == 2


@pytest.mark.parametrize(
    "fill", [b"x" * 3 * BLOCK_BYTES, b"y" * (MAX_LINE_CHARS + 1), b"z" * BLOCK_BYTES]
)
def test_an_endless_line_is_cut_and_the_next_one_is_whole(tmp_path, fill):
    lines, found = lines_of(tmp_path, b"first\n" + fill + b"\nlast\n")
    assert [line.text for line in (found[0], found[2])] == ["first", "last"]
    assert found[1].torn
    assert len(found[1].raw) <= MAX_LINE_CHARS
    assert (lines.num_lines, lines.num_cut, found[2].number) == (3, 1, 3)


def test_a_progress_bar_longer_than_a_block_keeps_its_states(tmp_path):
    states = [b"%d/150000" % at for at in range(150_000)]
    lines, found = lines_of(tmp_path, b"\r".join(states) + b"\nend\n", "149999/", "end")
    assert [line.text for line in found] == ["149999/150000", "end"]
    assert (lines.num_lines, lines.num_cut) == (150_001, 0)


def test_broken_utf8_is_replaced_and_not_fatal(tmp_path):
    _, found = lines_of(tmp_path, b"loss \xff\xfe 1\n\xe2\x96")
    assert found[0].text == "loss �� 1"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git-LFS pointer"),
        (bytes(range(256)) * 16, "binary"),
        (b"\0" * 4096, "binary"),
    ],
)
def test_what_is_no_text_is_refused_with_its_reason(tmp_path, data, words):
    path = tmp_path / "run.log"
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match=words):
        TextLines(path, ("",))


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(EvidenceError, match="folder"):
        TextLines(tmp_path, ("",))
    with pytest.raises(EvidenceError, match="no such file"):
        TextLines(tmp_path / "none", ("",))


PIECES = [
    b"a",
    b"bcd",
    b"\r",
    b"\n",
    b"\r\n",
    b"x" * 15,
    b"y" * 16,
    b"z" * 40,
    "é".encode(),
    b"\xff",
    b" ",
]


@settings(max_examples=60)
@given(data=st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
def test_blocks_and_limits_of_any_size_give_the_lines_of_the_whole_text(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("lines") / "run.log"
    path.write_bytes(data)
    whole = [
        (number, piece)
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1)
        for piece in line.split("\r")
        if piece
    ]
    with (
        pytest.MonkeyPatch.context() as small
    ):  # the same rules, at sizes where every border is met
        small.setattr(line_reader, "BLOCK_BYTES", 8)
        small.setattr(line_reader, "MAX_LINE_CHARS", 16)
        lines = TextLines(path, ("",))
        seen = [line for line in lines if line.raw or line.torn]
    expected = [(number, piece[:16]) for number, piece in whole]
    # the end of a torn line is left out on purpose
    assert len(seen) == len(expected)
    for line, (number, piece) in zip(seen, expected, strict=True):
        assert line.number == number
        assert piece.startswith(line.raw) if line.torn else line.raw == piece
    assert lines.num_cut == sum(len(piece) > 16 for _, piece in whole)
    is_torn = bool(whole) and not data.endswith((b"\n", b"\r"))
    assert sum(line.torn for line in seen) == lines.num_cut + (is_torn and len(whole[-1][1]) <= 16)


@pytest.mark.parametrize(
    ("path", "attempt", "rank"),
    [
        ("logs/none_x1y2/attempt_2/5/stdout.log", 2, 5),
        ("logs/none_x1y2/attempt_0/11/stderr.log", 0, 11),
        ("slurm-4711_3.out", None, 3),
        ("slurm-4711_12-3.out", None, 3),
        ("slurm-4711.out", None, None),
        ("logs/rank_7.log", None, 7),
        ("logs/train-rank12.txt", None, 12),
        ("logs/frank3.log", None, None),
        ("5/stdout.log", None, None),
        ("attempt_1/x/stdout.log", None, None),
    ],
)
def test_the_tree_of_a_launcher_names_attempt_and_rank(path, attempt, rank):
    found = placement(Path("/run") / path)
    assert (found.attempt, found.rank) == (attempt, rank)
    assert (found == Placement()) == (attempt is None and rank is None)


def test_a_reader_takes_attempt_and_rank_from_the_tree(tmp_path):
    path = tmp_path / "none_ab" / "attempt_3" / "1" / "stdout.log"
    path.parent.mkdir(parents=True)
    path.write_text("iter 20: loss 2.5, time 1.00ms\niter 10: loss 2.25, time 1.00ms\n")
    facts = nanogpt_stdout.read(path, DEFAULT)
    losses = [one for one in facts.series if one.name == "loss/mean"]
    assert [(one.attempt, one.rank, one.steps.tolist()) for one in losses] == [
        (3, 1, [21]),
        (4, 1, [11]),
    ]
    assert any("local rank" in note for note in facts.notes)


def test_a_log_that_goes_back_all_the_time_is_bounded_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(log_points, "MAX_SERIES", 10)
    path = tmp_path / "run.log"
    steps = [9, 3] * 50
    path.write_text("".join(f"iter {step}: loss 2.5, time 1.00ms\n" for step in steps))
    facts = nanogpt_stdout.read(path, DEFAULT)
    assert len(facts.series) <= 10
    assert any("names more than 10 series" in problem for problem in facts.problems)
