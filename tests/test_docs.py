"""README and pages against the program.

Every command is told of, every command line told of exists, examples work.

It starts no training process.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import ROOT, commands, takes
from runbook_pages import examples, leads_to

from spiketriage import errors
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.checks import CHECKS
from spiketriage.incident.progress import ORDER
from spiketriage.practice.rehearsal.catalogue import load_fault
from spiketriage.practice.rehearsal.staging import prepare
from spiketriage.readers.discover import kinds
from spiketriage.train.harness import Harness

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "runbooks").glob("*.md"))
}
TEXTS = {"README": README, **PAGES}
HEADINGS = [
    "When",
    "Before you touch anything",
    "Commands",
    "What you should see",
    "If you see something else",
    "How to undo",
]
TYPED = re.compile(r"^\$ (.*)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(spiketriage(?:\s[^`]+)?)`(?!`)")
FORMATS = re.compile(r"(?<=<!-- formats: begin -->\n).*?(?=<!-- formats: end -->\n)", re.DOTALL)
SCREEN_LINES, SCREEN_COLUMNS = 50, 125


def _ours(text: str) -> list[str]:
    """Every `spiketriage …` command line of a text, in prose or in a block, without what the shell adds."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [*TYPED.findall(text), *(" ".join(found.split()) for found in INLINE.findall(prose))]
    parts = [part.strip().partition(" 2>")[0] for line in lines for part in line.split("&&")]
    return [
        part
        for part in parts
        if part.split(" ")[0].endswith("spiketriage") and part != "spiketriage"
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_line_told_of_is_taken_by_the_parser(name: str) -> None:
    lines = _ours(TEXTS[name])
    assert lines
    assert [(line, takes(line)) for line in lines if takes(line)] == []


def test_every_command_is_told_of() -> None:
    told = [shlex.split(line) for text in TEXTS.values() for line in _ours(text)]
    missing = [
        " ".join(path)
        for path, _ in commands()
        if not any(tuple(words[1 : len(path)]) == path[1:] for words in told)
    ]
    assert missing == []


def test_there_is_a_page_for_each_step_in_the_order_of_the_runbook() -> None:
    steps = [f"{number}-{step}" for number, step in enumerate(ORDER, start=1)]
    assert list(PAGES) == ["0-at-3am", *steps, "record", "stabilizers"]


@pytest.mark.parametrize("name", [name for name in PAGES if name[0] in "123456789"])
def test_a_page_has_the_six_headings(name: str) -> None:
    assert re.findall(r"^## (.*)$", PAGES[name], re.MULTILINE) == HEADINGS


def test_the_first_page_fits_one_screen() -> None:
    lines = PAGES["0-at-3am"].splitlines()
    assert len(lines) <= SCREEN_LINES
    assert [line for line in lines if len(line) > SCREEN_COLUMNS] == []


def test_the_pages_name_every_cause_and_every_check() -> None:
    assert [cause.name for cause in CAUSES if cause.name not in PAGES["6-bisect"]] == []
    assert [check.NAME for check in CHECKS if check.NAME not in PAGES["3-check"]] == []


def test_the_terminal_output_in_the_readme_is_that_of_the_pages() -> None:
    block = next(
        body
        for body in re.findall(r"^```console\n(.*?)^```$", README, re.M | re.S)
        if "triage run" in body
    )
    shown = [line for line in block.splitlines()[1:] if "…" not in line]
    said = [
        line for page in PAGES.values() for example in examples(page) for line in example.expected
    ]
    concrete = [line for line in said if line.strip("[.]")]
    assert len(shown) > 10
    assert [
        line for line in shown if not any(leads_to(pattern, line) for pattern in concrete)
    ] == []


def test_the_readme_lists_every_exit_code() -> None:
    listed = {
        int(number)
        for row in re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE)
        for number in row.split(",")
    }
    raised = {kind.exit_code for kind in _kinds(errors.SpiketriageError)}
    assert raised | {0, 1, 130, 143} <= listed


def test_the_tree_in_the_readme_exists() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    block = next(body for language, body in blocks if not language and "cli/" in body)
    parent = ROOT
    for line in block.splitlines():
        if line.startswith("   "):  # a description that goes on
            continue
        name = line.split()[0]
        place = (parent if line.startswith("  ") else ROOT) / name
        assert place.exists(), name
        parent = parent if line.startswith("  ") else place


def test_every_path_told_of_exists() -> None:
    paths = {
        path
        for text in TEXTS.values()
        for path in re.findall(r"`((?:spiketriage|runbooks)/[\w./-]+)`", text)
    }
    paths = {path for path in paths if not path.endswith("/x.py")}
    assert "spiketriage/train/harness.py" in paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_table_of_formats_is_what_the_readers_say(request: pytest.FixtureRequest) -> None:
    members = [(kind, one) for kind, formats in kinds().items() for one in formats]
    rows = [f"| {kind} | {one.NAME} | {one.TELLS} | {one.CANNOT} |\n" for kind, one in members]
    table = "".join(["| kind | format | tells | cannot tell |\n", "|---|---|---|---|\n", *rows])
    assert FORMATS.search(README)
    if request.config.getoption("--update-surface"):
        (ROOT / "README.md").write_text(FORMATS.sub(lambda _: table, README), encoding="utf-8")
    written = FORMATS.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert written is not None
    assert written[0] == table, "wanted? then: pytest --update-surface"


def test_the_harness_example_has_every_method_of_the_protocol() -> None:
    source = _python("class Mine")
    compile(source, "README.md", "exec")
    methods = {name for name in vars(Harness) if not name.startswith("_")}
    assert methods <= set(re.findall(r"^    def (\w+)\(", source, re.MULTILINE))


def test_the_outside_fault_of_the_readme_can_be_planted(tmp_path: Path) -> None:
    path = tmp_path / "my_fault.py"
    path.write_text(_python("def plant"), encoding="utf-8")
    stage = prepare(106)
    chosen = stage.documents_at(stage.fault_step, stage.rank)
    before = [stage.documents[number].data for number in chosen]
    fault = load_fault(str(path))
    fault.plant(stage)
    after = [stage.documents[number].data for number in chosen]
    assert fault.cause in {cause.name for cause in CAUSES}
    assert [len(data) for data in after] == [len(data) for data in before]
    assert all(data[8:].count(0) == len(data) - 8 for data in after)
    assert after != before


def _python(part: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if part in block)


def _kinds(root: type[errors.SpiketriageError]) -> set[type[errors.SpiketriageError]]:
    return {root}.union(*(_kinds(kind) for kind in root.__subclasses__()))
