"""The pages of `runbooks/` are true.

Every command in them is run, in order, as one story on one run.

`pytest --update-runbooks` writes what was really printed into the pages; read the difference first.
"""

from __future__ import annotations

import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import PROGRAM, environment, takes
from rehearsed import Rehearsed
from runbook_pages import Example, examples, execute, leads_to, matches, rewritten, told

PAGES = sorted((Path(__file__).parents[1] / "runbooks").glob("*.md"))
STORY = [page for page in PAGES if page.name[:1] in "123456789"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, bitrot_run: Rehearsed) -> Path:
    """Make the desk as the operator finds it.

    The run is in `run/`, `spiketriage` is on the PATH.
    """
    folder = tmp_path_factory.mktemp("desk")
    program = folder / ".bin" / "spiketriage"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    program.chmod(0o755)
    shutil.copytree(
        bitrot_run.folder, folder / "run", ignore=shutil.ignore_patterns(".spiketriage")
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_what_really_happens(
    page: Path, desk: Path, request: pytest.FixtureRequest
) -> None:
    env = {**environment(), "PATH": f"{desk / '.bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}
    text = page.read_text(encoding="utf-8")
    shown = examples(text)
    really = [execute(example, desk, env) for example in shown]
    if request.config.getoption("--update-runbooks"):
        page.write_text(rewritten(text, really), encoding="utf-8")
        return
    wrong = [
        told(example, seen)
        for example, seen in zip(shown, really, strict=True)
        if not matches(example, seen)
    ]
    assert not wrong, "\n\n".join(
        [*wrong, "wanted? then: pytest --update-runbooks tests/test_runbooks.py"]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_commands_that_exist(page: Path) -> None:
    shown = [example.command for example in examples(page.read_text(encoding="utf-8"))]
    assert shown
    ours = [command.partition(" 2>")[0] for command in shown if command.startswith("spiketriage ")]
    assert [
        (command, takes(command)) for command in ours if "|" not in command and takes(command)
    ] == []


def test_each_page_ends_where_the_next_begins() -> None:
    pages = [examples(page.read_text(encoding="utf-8")) for page in STORY]
    links = [(_last_said(before), after[0].command) for before, after in pairwise(pages)]
    assert [(said, typed) for said, typed in links if not leads_to(said, typed)] == []


def _last_said(page: list[Example]) -> str:
    return next((example.following for example in reversed(page) if example.following), "")
