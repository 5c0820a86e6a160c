"""The files of reported attacks end in a sentence: none hangs, crashes or is executed.

They lie beside the checkout and are skipped where they do not; this file holds none of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import call
from reported_attacks import ATTACKS, KINDS, ROOT

pytestmark = pytest.mark.slow
SCRIPTS = (".py", ".sh", ".c", ".md", ".txt")


def samples() -> list[Path]:
    """Whatever is no program and no explanation."""
    if not ATTACKS.is_dir():
        return []
    paths = []
    for path in sorted(ATTACKS.rglob("*")):
        if path.is_file() and path.suffix not in SCRIPTS and "__pycache__" not in path.parts:
            paths.append(path)
    return paths


def test_every_kind_has_tests_that_exist() -> None:
    for attack in KINDS:
        for name in attack.tests:
            assert (ROOT / "tests" / name).is_file(), name


@pytest.mark.skipif(not ATTACKS.is_dir(), reason=f"{ATTACKS} is not here")
@pytest.mark.parametrize("sample", samples(), ids=lambda path: str(path.relative_to(ATTACKS)))
def test_a_reported_file_ends_in_a_sentence(sample: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copyfile(sample, run / sample.name)
    (run / sample.name).chmod(0o600)
    for words in (("inspect", str(run / sample.name)), ("freeze", str(run))):
        done = call(*words, "--json", cwd=tmp_path)
        envelope = json.loads(done.stdout)
        assert done.returncode in (0, 1, 3, 4, 5, 6), done.stderr
        said = done.stderr + json.dumps(envelope, ensure_ascii=False)
        assert [word for word in said if not word.isprintable() and word != "\n"] == []
