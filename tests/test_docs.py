"""README, docs and runbook pages against the program: every command is named, every example works.

It starts no training process.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import doc_tables
import pytest
from command_line import ROOT, commands, takes
from runbook_pages import examples, leads_to

from spiketriage import errors
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.checks import CHECKS
from spiketriage.incident.progress import ORDER
from spiketriage.practice.rehearsal.catalogue import load_fault
from spiketriage.practice.rehearsal.staging import prepare
from spiketriage.train.harness import Harness

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "runbooks").glob("*.md"))
}
DOCS = {
    f"docs/{path.stem}": path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").glob("*.md"))
}
OTHERS = {
    name: (ROOT / f"{name}.md").read_text(encoding="utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")
}
TEXTS = {"README": README, **PAGES, **DOCS, **OTHERS}
README_LINES = 130
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
POINTER = re.compile(r"docs/([a-z-]+)\.md(?:#([a-z0-9-]+))?")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
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
def test_every_command_line_named_is_taken_by_the_parser(name: str) -> None:
    lines = _ours(TEXTS[name])
    assert [(line, takes(line)) for line in lines if takes(line)] == []


def test_every_command_is_named() -> None:
    lines = [shlex.split(line) for text in TEXTS.values() for line in _ours(text)]
    missing = []
    for path, _ in commands():
        if not any(tuple(words[1 : len(path)]) == path[1:] for words in lines):
            missing.append(" ".join(path))
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


def test_the_readme_is_short_and_shows_what_the_ci_runs() -> None:
    assert len(README.splitlines()) <= README_LINES
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert "spiketriage demo" in blocks[0]
    assert "-m pytest" in blocks[1]


@pytest.mark.parametrize(("page", "name"), [row[:2] for row in doc_tables.GENERATED])
def test_a_generated_block_is_what_the_code_says(
    page: str, name: str, request: pytest.FixtureRequest
) -> None:
    path = ROOT / "docs" / f"{page}.md"
    make = next(row[2] for row in doc_tables.GENERATED if row[:2] == (page, name))
    block = doc_tables.block(name)
    text = path.read_text(encoding="utf-8")
    assert block.search(text), f"{path}: no block {name}"
    if request.config.getoption("--update-surface"):
        text = block.sub(lambda _: make(), text)
        path.write_text(text, encoding="utf-8")
    assert block.findall(text) == [make()], "wanted? then: pytest --update-surface"


def test_every_exit_code_that_an_error_has_is_listed() -> None:
    listed = re.findall(r"^\| (\d+) \|", DOCS["docs/exit-codes"], re.MULTILINE)
    raised = {kind.exit_code for kind in doc_tables.subclasses(errors.SpiketriageError)}
    assert raised | set(doc_tables.OTHER_CODES) == {int(number) for number in listed}


def test_the_tree_in_the_docs_exists() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DOCS["docs/architecture"], re.M | re.S)
    block = next(body for language, body in blocks if not language and "cli/" in body)
    parent = ROOT
    for line in block.splitlines():
        if line.startswith("   "):  # a description that goes on
            continue
        name = line.split()[0]
        place = (parent if line.startswith("  ") else ROOT) / name
        assert place.exists(), name
        parent = parent if line.startswith("  ") else place


def test_every_path_named_exists() -> None:
    paths = {
        path
        for text in TEXTS.values()
        for path in re.findall(r"`((?:spiketriage|runbooks|docs|tests)/[\w./-]+)`", text)
    }
    paths = {path for path in paths if not path.endswith("/x.py")}
    assert "spiketriage/train/harness.py" in paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["README", *OTHERS, *DOCS])
def test_every_link_leads_somewhere(name: str) -> None:
    folder = (ROOT / f"{name}.md").parent
    broken = []
    for target, anchor in LINK.findall(re.sub(r"`[^`]*`", "", TEXTS[name])):
        path = folder / target if target else ROOT / f"{name}.md"
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append((target, anchor))
    assert broken == []


def test_every_reason_that_the_code_points_at_is_written() -> None:
    pointers = set()
    for path in (ROOT / "spiketriage").rglob("*.py"):
        pointers |= set(POINTER.findall(path.read_text(encoding="utf-8")))
    assert pointers
    missing = []
    for page, anchor in sorted(pointers):
        path = ROOT / "docs" / f"{page}.md"
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            missing.append((page, anchor))
    assert missing == []


def test_the_code_points_at_no_page_that_is_not_here() -> None:
    elsewhere = []
    for path in sorted((ROOT / "spiketriage").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"§|DESIGN\b|\b(?:performance|prototype|diagnosis|detection)\.md", line):
                elsewhere.append(f"{path.relative_to(ROOT)}:{number}")
    assert elsewhere == []


def test_the_pages_build_strictly(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install '.[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "architecture" / "index.html").exists()


def test_each_page_of_the_docs_is_in_the_navigation_and_on_the_first_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in DOCS:
        file = f"{name.removeprefix('docs/')}.md"
        assert f": {file}\n" in navigation, file
        assert file == "index.md" or f"({file})" in DOCS["docs/index"], file


def test_the_hooks_call_what_the_ci_calls() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    entries = re.findall(r"entry: (.*)", hooks)
    assert entries == ["ruff check", "ruff format --check", "mypy", "lint-imports"]
    assert [entry for entry in entries if f"'{entry}'" not in script] == []


def test_the_harness_example_has_every_method_of_the_protocol() -> None:
    source = _python("docs/own-trainer", "class Mine")
    compile(source, "docs/own-trainer.md", "exec")
    methods = {name for name in vars(Harness) if not name.startswith("_")}
    assert methods <= set(re.findall(r"^    def (\w+)\(", source, re.MULTILINE))


def test_the_outside_fault_of_the_docs_can_be_planted(tmp_path: Path) -> None:
    path = tmp_path / "my_fault.py"
    path.write_text(_python("docs/practice", "def plant"), encoding="utf-8")
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


@pytest.mark.parametrize("name", ["README", "docs/own-trainer"])
def test_the_adapter_example_compiles(name: str) -> None:
    code = compile(_python(name, "HfJob"), f"{name}.md", "exec")
    assert "HfJob" in code.co_names


def _python(name: str, part: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXTS[name], re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if part in block)


def _anchors(path: Path) -> set[str]:
    """What a heading of the page can be linked by."""
    if path.suffix != ".md":
        return set()
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
