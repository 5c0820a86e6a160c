"""The code of a run is imported only after somebody said that it may be: what that covers.

Values come from the file system by an independent walk; nothing is imported.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folder import write_run

from spiketriage.diagnosis import trust
from spiketriage.errors import EvidenceError, NotTrustedError
from spiketriage.readers.settings import read_settings

COMMAND = "spiketriage replay run"
TREES = st.dictionaries(
    st.sampled_from(["a.py", "b.py", "a/__init__.py", "a/b.py", "c.pyc"]), st.binary(max_size=4)
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a harness, and a user who trusts nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = write_run(tmp_path / "run", spike_at=110)
    package = folder / "code" / "r2" / "trainer"
    package.mkdir(parents=True, exist_ok=True)
    (package / "trainer.py").write_text("factory = 1\n", encoding="utf-8")
    return folder


def code_of(run: Path) -> trust.RunCode:
    return trust.code_of(read_settings(run))


def require(run: Path, *, is_granted: bool = False, folder: Path | None = None) -> str:
    place = folder or run / "code" / "r2"
    return trust.require(code_of(run), place, is_granted=is_granted, command=COMMAND)


def test_nothing_is_trusted_before_somebody_says_so_and_what_was_said_is_remembered(
    run: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotTrustedError, match="was never trusted by you") as refused:
        require(run)
    assert (refused.value.exit_code, refused.value.hint) == (3, f"{COMMAND} --trust")
    assert "by this command" in require(run, is_granted=True)
    sentence = require(run)
    assert code_of(run).digest in sentence
    assert "trainer.harness:factory" in sentence
    (record,) = (tmp_path / "state" / "spiketriage" / "trusted").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda package: (package / "trainer.py").write_text("factory = 2\n"),
        lambda package: (package / "trainer.py").unlink(),
        lambda package: (package / "trainer.py").rename(package / "other.py"),
        lambda package: (package / "json.py").write_text(""),
        lambda package: (package.parent / "torch.so").write_bytes(b"\x7fELF"),
        lambda package: (package / "old.pyc").write_bytes(b""),
        lambda package: (package / "sub").symlink_to(_elsewhere(package)),
    ],
    ids=["changed", "gone", "renamed", "shadow", "library", "bytecode", "link"],
)
def test_whatever_an_import_would_load_otherwise_is_asked_about_again(
    run: Path, change: Callable[[Path], object]
) -> None:
    require(run, is_granted=True)
    change(run / "code" / "r2" / "trainer")
    with pytest.raises(NotTrustedError, match="is no longer what you trusted at 2"):
        require(run)


def test_another_harness_of_the_same_files_is_asked_about_again(run: Path) -> None:
    require(run, is_granted=True)
    settings = run / "spiketriage.toml"
    settings.write_text(settings.read_text().replace(":factory", ":other"), encoding="utf-8")
    with pytest.raises(NotTrustedError, match="is no longer what you trusted"):
        require(run)


def test_what_no_import_loads_may_change(run: Path) -> None:
    require(run, is_granted=True)
    package = run / "code" / "r2" / "trainer"
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "trainer.cpython-311.pyc").write_bytes(b"x")
    (package / "notes.txt").write_text("x", encoding="utf-8")
    (package / ".git").mkdir()
    (package / ".git" / "hook.py").write_text("x", encoding="utf-8")
    assert require(run)


def test_a_copy_of_a_trusted_run_is_another_run(run: Path, tmp_path: Path) -> None:
    # Its code is the same, but its checkpoints need not be, and loading them can execute too.
    require(run, is_granted=True)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with pytest.raises(NotTrustedError, match="never trusted"):
        require(copy)


def test_code_that_only_the_record_of_the_run_names_is_never_imported(
    run: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotTrustedError, match="which the run's settings do not") as refused:
        require(run, is_granted=True, folder=tmp_path / "elsewhere")
    assert "python_path" in refused.value.hint
    inside = run / "code" / "r3"
    inside.symlink_to(tmp_path)
    with pytest.raises(NotTrustedError, match="which the run's settings do not"):
        require(run, is_granted=True, folder=inside)


def test_a_record_that_others_could_have_written_is_none(run: Path, tmp_path: Path) -> None:
    require(run, is_granted=True)
    (record,) = (tmp_path / "state" / "spiketriage" / "trusted").iterdir()
    record.chmod(0o666)
    with pytest.raises(NotTrustedError, match="never trusted"):
        require(run)
    for text in ("", "{", "[]", '{"run": 1}', '{"run": "/other"}', "\x00"):
        record.write_text(text, encoding="utf-8")
        record.chmod(0o600)
        with pytest.raises(NotTrustedError, match="never trusted"):
            require(run)


def test_a_run_cannot_grant_itself_trust_through_the_current_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    for relative in ("state", "", "."):
        monkeypatch.setenv("XDG_STATE_HOME", relative)
        monkeypatch.setenv("HOME", relative or "home")
        assert "by this command" in require(run, is_granted=True)
        with pytest.raises(NotTrustedError, match="never trusted"):
            require(run)


def test_code_that_cannot_be_read_is_told_and_not_imported(run: Path) -> None:
    os.mkfifo(run / "code" / "r2" / "pipe.py")
    with pytest.raises(EvidenceError, match=r"pipe\.py: cannot be read"):
        require(run, is_granted=True)


def test_folders_that_link_to_each_other_are_read_once(run: Path) -> None:
    num_files = code_of(run).num_files
    package = run / "code" / "r2" / "trainer"
    (package / "again").symlink_to(package)
    (package / "up").symlink_to(run / "code")
    assert code_of(run).num_files == num_files


@given(contents=TREES, others=TREES)
def test_two_trees_have_one_digest_only_if_they_are_the_same(
    contents: dict[str, bytes], others: dict[str, bytes]
) -> None:
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for tree in (contents, others):
            for name, data in tree.items():
                path = run / "code" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            (run / "spiketriage.toml").parent.mkdir(exist_ok=True)
            (run / "spiketriage.toml").write_text('schema = 1\n[run]\nid = "x"\n', encoding="utf-8")
            digests.append(code_of(run).digest)
            shutil.rmtree(run)
    assert (digests[0] == digests[1]) == (contents == others)


def _elsewhere(package: Path) -> Path:
    folder = package.parents[3] / "elsewhere"
    folder.mkdir()
    (folder / "module.py").write_text("", encoding="utf-8")
    return folder
