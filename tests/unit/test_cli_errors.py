"""Whatever goes wrong ends in a sentence, a command that helps and the promised exit code."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ROOT, call, environment, takes

from spiketriage import errors
from spiketriage.cli.show import wrapped

GUARDED = """
import sys
from spiketriage import errors
from spiketriage.cli.entry import guard
from spiketriage.cli.show import show
from spiketriage.nouns.incident import StepResult

def program():
    {body}

sys.exit(guard(program, sys.argv[1:]))
"""
RESULT = """return show("check", StepResult(incident="i", exit_code={code}, verdict="v", lines={lines!r},
        data={data}, next_commands=("spiketriage hash run", "spiketriage check run")), {as_json})"""
ERRORS = [
    (errors.UsageError, "usage", 2),
    (errors.RefusedError, "refused", 3),
    (errors.NotTrustedError, "not-trusted", 3),
    (errors.EvidenceError, "evidence", 4),
    (errors.NoRoomError, "no-room", 4),
    (errors.PartialError, "partial", 6),
    (errors.DiskFullError, "disk-full", 6),
    (errors.TrialError, "trial", 7),
    (errors.BusyError, "busy", 8),
]


def start(body: str, *words: str, **streams: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GUARDED.format(body=body), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **streams}
    # A test command started in the background hands an ignored SIGINT down; a person's terminal
    # never does.
    return subprocess.Popen(command, text=True, preexec_fn=_hear_interrupts, **pipes)


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def guarded(body: str, *words: str, **streams: object) -> tuple[int, str, str]:
    with start(body, *words, **streams) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def result(*lines: str, code: int = 0, data: str = "{}", as_json: bool = False) -> str:
    return RESULT.format(code=code, lines=lines, data=data, as_json=as_json)


@pytest.mark.parametrize(("kind", "code", "exit_code"), ERRORS)
def test_an_error_of_ours_is_a_sentence_a_hint_and_its_exit_code(
    kind: type[errors.SpiketriageError], code: str, exit_code: int
) -> None:
    body = (
        f'raise errors.{kind.__name__}("step 7: expected a, found b", hint="spiketriage hash run")'
    )
    assert guarded(body, "check", "run") == (
        exit_code,
        "",
        "step 7: expected a, found b\n\nhint: spiketriage hash run\n",
    )
    seen, out, err = guarded(body, "check", "run", "--json")
    assert (seen, err) == (exit_code, "step 7: expected a, found b\n\nhint: spiketriage hash run\n")
    assert json.loads(out) == {
        "schema": "spiketriage.check/1",
        "ok": False,
        "verdict": "",
        "exit": exit_code,
        "incident": "",
        "data": {},
        "next": ["spiketriage hash run"],
        "error": {
            "code": code,
            "message": "step 7: expected a, found b",
            "hint": "spiketriage hash run",
        },
    }


def test_every_error_class_has_a_case_here() -> None:
    def below(kind: type) -> Iterator[type]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    tested = {kind for kind, _, _ in ERRORS}
    in_training = {
        errors.GuardStopError,
        errors.AgreementError,
        errors.StepNotTakenError,
    }  # raised in the job, which no command of ours is
    special = {errors.CorruptFileError, errors.CutArchiveError}
    assert set(below(errors.SpiketriageError)) - tested == special | in_training


def test_a_disk_that_fails_is_no_bug() -> None:
    body = "import errno; raise OSError(errno.EIO, 'Input/output error', '/run/bag.txt')"
    assert guarded(body, "freeze") == (
        4,
        "",
        "/run/bag.txt: Input/output error: its disk failed; what was recorded before stands\n",
    )


def test_a_bug_keeps_its_traceback_in_a_file(tmp_path: Path) -> None:
    code, out, err = guarded(
        "return 1 / 0", "check", env={**environment(), "TMPDIR": str(tmp_path)}
    )
    assert (code, out) == (70, "")
    (kept,) = tmp_path.glob("spiketriage-traceback-*.txt")
    assert err == (
        "this is a bug in spiketriage: ZeroDivisionError: division by zero; the traceback "
        f"is kept in {kept}\n"
    )
    story = kept.read_text(encoding="utf-8")
    assert "spiketriage check\n" in story
    assert "in program" in story


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_signal_cleans_up_and_names_the_same_command(
    number: signal.Signals, code: int, what: str, as_json: bool
) -> None:
    body = """import time
    try:
        print("working", file=sys.stderr, flush=True)
        time.sleep(60)
    finally:
        print("cleaned", file=sys.stderr, flush=True)"""
    words = ["replay", "my run", *(["--json"] if as_json else [])]
    again = "spiketriage replay 'my run'" + (" --json" if as_json else "")
    with start(body, *words) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "working\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    message = f"{what}; what was finished is recorded, and the same command goes on from there"
    assert err == f"cleaned\n{message}\n\nnext: {again}\n"
    if as_json:
        envelope = json.loads(out)
        assert (envelope["exit"], envelope["error"]["code"], envelope["next"]) == (
            code,
            what,
            [again],
        )


def test_a_full_disk_is_a_sentence_and_not_a_bug(tmp_path: Path) -> None:
    body = 'raise OSError(28, "No space left on device", "/mnt/incident.duckdb")'
    assert guarded(body, "freeze")[::2] == (
        6,
        "the disk is full: /mnt/incident.duckdb could not be written; what was recorded "
        "before stands\n"
        "\nhint: df -h /mnt\n",
    )
    with open("/dev/full", "w") as full:
        code, _, err = guarded(result("a line"), "check", stdout=full)
    assert (code, err.partition(";")[0]) == (
        6,
        "the disk is full: standard output could not be written",
    )


def test_a_reader_that_leaves_changes_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, _, err = guarded(result("a line", code=1), "check", stdout=writing)
    finally:
        os.close(writing)
    assert (code, err) == (1, "")


def test_text_ends_with_the_next_command() -> None:
    assert guarded(result("a → b ≥ c"), env={**environment()}) == (
        0,
        "a → b ≥ c\nnext: spiketriage hash run\n  or: spiketriage check run\n",
        "",
    )


def test_output_is_plain_ascii_where_the_stream_asks_for_it() -> None:
    ascii_only = {**environment(), "PYTHONIOENCODING": "ascii"}
    _, out, _ = guarded(result("a → b ≥ c — Ω"), env=ascii_only)
    assert out.splitlines()[0] == "a -> b >= c - \\u03a9"


def test_evidence_cannot_steer_the_terminal() -> None:
    _, out, _ = guarded(result("doc \x1b]0;owned\x07 \x9b31m end"))
    assert out.splitlines()[0] == "doc \\x1b]0;owned\\x07 \\x9b31m end"


def test_nonfinite_numbers_are_strings_in_json() -> None:
    data = '{"loss": [float("nan"), float("inf"), -float("inf"), 1.5], "none": None}'
    code, out, _ = guarded(result(code=1, data=data, as_json=True))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    envelope = json.loads(out, parse_constant=refuse)
    assert (code, envelope["ok"], envelope["verdict"], envelope["incident"]) == (1, False, "v", "i")
    assert envelope["data"] == {"loss": ["NaN", "Infinity", "-Infinity", 1.5], "none": None}


def test_colour_on_a_terminal_only_and_never_with_no_color() -> None:
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        shown, terminal = os.openpty()
        env = {
            **{k: v for k, v in environment().items() if k != "NO_COLOR"},
            "TERM": "xterm",
            **extra,
        }
        code, _, err = guarded(result("rank 1 differs"), stdout=terminal, env=env)
        os.close(terminal)
        text = os.read(shown, 10_000).decode()
        os.close(shown)
        assert (code, err) == (0, "")
        assert ("\x1b[" in text) == coloured
        assert "differs" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["chek"], 2, "Did you mean 'check'?\n\nhint: spiketriage --help"),
        (["check", "--jsn"], 2, "--json)\n\nhint: spiketriage check --help"),
        (["replay", "--repeats", "0"], 2, "hint: spiketriage replay --help"),
        (
            ["rehearse", "score", "--seeds", "a"],
            2,
            "hint: spiketriage rehearse score --seeds 11,12,13",
        ),
        (["rehearse"], 2, "`spiketriage rehearse list`"),
        (["status"], 2, "holds spiketriage.toml\n\nhint: spiketriage status RUN"),
    ],
)
def test_a_wrong_command_line_says_what_to_type(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = call(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    enveloped = json.loads(call(*words, "--json", cwd=tmp_path).stdout)
    assert (enveloped["ok"], enveloped["exit"]) == (False, code)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "triage",
        "freeze",
        "hash",
        "check",
        "replay",
        "branch",
        "bisect",
        "report",
        "status",
        "verify",
        "sql",
    ],
)
def test_a_folder_that_is_no_run_reads_the_same_everywhere(tmp_path: Path, command: str) -> None:
    words = [command, "FROM facts"] if command == "sql" else [command]
    done = call(*words, "absent", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        4,
        f"{tmp_path / 'absent'}: there is no such run folder\n",
    )


@pytest.mark.slow
def test_the_hint_for_a_folder_without_settings_makes_a_run_of_it(tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "logs").mkdir()
    done = call("status", "my run", cwd=tmp_path)
    assert done.returncode == 4
    hint = done.stderr.partition("hint: ")[2]
    subprocess.run(["bash", "-c", hint], check=True, cwd="/")
    assert (
        tmp_path / "my run" / "spiketriage.toml"
    ).read_text() == 'schema = 1\n[run]\nid = "my run"\n'
    assert call("status", "my run", cwd=tmp_path).returncode == 0


def test_long_lines_hang_on_a_terminal_and_commands_to_paste_stay_whole() -> None:
    row = "differs       content-profile   " + "word " * 30
    lines = wrapped(row.strip(), 100).split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 100 for line in lines)
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {32}
    assert "".join(line.strip() + " " for line in lines).split() == row.split()
    command = "next: spiketriage check " + "run" * 60
    assert wrapped(command, 100) == command


def test_bare_spiketriage_outside_a_run_says_where_to_begin(tmp_path: Path) -> None:
    done = call(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("next: spiketriage demo\n")


def hints() -> Iterator[tuple[str, str]]:
    """Every `spiketriage …` that an error in the source suggests, with its placeholders filled in."""
    for path in sorted((ROOT / "spiketriage").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.keyword) and node.arg == "hint"
            named |= isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint"
            text = (
                _filled(node.value) if named and isinstance(node, ast.keyword | ast.Assign) else ""
            )
            if text.startswith("spiketriage ") and text.split()[1] != "7":
                yield f"{path.relative_to(ROOT)}:{node.value.lineno}", text  # type: ignore[attr-defined]


def _filled(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_filled(part) for part in node.values)
    return (
        "7" if isinstance(node, ast.FormattedValue) else ""
    )  # good for a path, a name and a number


@pytest.mark.slow
def test_every_hint_can_be_pasted() -> None:
    found = list(hints())
    assert len(found) > 3
    assert [(where, text, takes(text)) for where, text in found if takes(text)] == []


def test_the_parser_refuses_a_hint_that_is_wrong() -> None:
    assert takes("spiketriage check 7 --audit") == ""
    assert "No such option" in takes("spiketriage check 7 --verbose")
    assert "no such command" in takes("spiketriage gate 7")
