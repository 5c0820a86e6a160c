"""One of each kind that CONTRIBUTING.md says can be added, added to a copy of this tree from a template.

The contract tests run in the copy, on the members that nobody wrote a test for; this tree itself is
never changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT

TEMPLATES = ROOT / "tests" / "templates"
MAX_FILES = 3
KINDS = tuple(sorted(path.parent.name for path in TEMPLATES.glob("*/recipe.toml")))
COPIED = ("spiketriage", "tests", "docs", "runbooks", "fixtures", ".ci")
NO_BUILDS = "not pages_build and not navigation"
# Tests that are parametrised over the tuples, and those that compare pages with the code.
CONTRACTS = (
    ("tests/test_contracts.py",),
    ("tests/unit/test_judge.py",),
    ("tests/test_reader_contracts.py", "-k", "paced or sure or claims or member or unique"),
    ("tests/test_docs.py", "-k", NO_BUILDS),
    ("tests/unit/test_stabilizers.py", "-k", "folder or sentence or torch"),
    ("tests/unit/test_defenses.py", "-k", "bring_up"),
    ("tests/test_job_pages.py", "-k", "traps"),
    ("tests/unit/test_cli_surface.py",),
    ("tests/adapters/test_closure.py",),
    ("tests/unit/test_imports.py", "-k", "elapsed"),
)


def recipe(kind: str) -> Mapping[str, Any]:
    return tomllib.loads((TEMPLATES / kind / "recipe.toml").read_text(encoding="utf-8"))


def apply(kind: str, tree: Path) -> None:
    """Lay down the new files of a recipe, and put its lines behind those that it names."""
    steps = recipe(kind)
    for new in steps.get("new", ()):
        shutil.copyfile(TEMPLATES / kind / new["from"], tree / new["to"])
    for edit in steps.get("edit", ()):
        path = tree / edit["file"]
        text = "\n" + path.read_text(encoding="utf-8")
        for line, added in edit["lines"]:
            assert text.count("\n" + line) == 1, f"{edit['file']} holds {line!r} not once"
            text = text.replace("\n" + line, "\n" + line + added)
        path.write_text(text[1:], encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with one of each kind, its generated pages written anew."""
    tree = tmp_path_factory.mktemp("added") / "tree"
    tree.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copyfile(path, tree / path.name)
    for kind in KINDS:
        apply(kind, tree)
    pages = ("tests/test_docs.py", "-k", "generated_block", "tests/unit/test_cli_surface.py")
    for words in (pages[:3], pages[3:]):
        done = run_tests(tree, *words, "--update-surface")
        assert done.returncode == 0, done.stdout
    return tree


def run_tests(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The tests of the copy, on the package of the copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=tree,
        env={**kept, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_three_files_at_most(kind: str) -> None:
    steps = recipe(kind)
    assert 1 <= len(steps.get("new", ())) + len(steps.get("edit", ())) <= MAX_FILES


@pytest.mark.parametrize("words", CONTRACTS, ids=lambda words: Path(words[0]).stem)
def test_the_contracts_hold_with_one_more_of_each(words: tuple[str, ...], tree: Path) -> None:
    done = run_tests(tree, *words)
    assert done.returncode == 0, done.stdout


def test_the_new_members_are_tested_without_a_test_of_their_own(tree: Path) -> None:
    listed = run_tests(
        tree, "--collect-only", "tests/test_contracts.py", "tests/unit/test_judge.py"
    )
    for name in ("negative_loss", "moment-overflow", "placement-heals", "hyperparameter-change"):
        assert name in listed.stdout, name


def test_contributing_names_each_kind_that_is_tried() -> None:
    rows = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`tests/templates/{kind}`" not in rows] == []
