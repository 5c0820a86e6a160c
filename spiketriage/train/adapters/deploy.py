"""What a run folder must hold so that the desk can execute its steps: code, config, settings.

It never overwrites a release of code or a settings file that is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiketriage import durable
from spiketriage.digests import of_tree
from spiketriage.errors import UsageError

MAX_FILES = 2000  # of a package; a folder with more is somebody's home, not a job


def deploy_code(run: Path, code: Path) -> Path:
    """The job's code inside the run: `code` itself, or a copy of its Python files by digest.

    Raises:
        UsageError: the folder holds far too many files to be a job's code.
    """
    if code.is_relative_to(run):
        return code
    if sum(1 for _ in zip(code.rglob("*.py"), range(MAX_FILES + 1), strict=False)) > MAX_FILES:
        raise UsageError(
            f"{code} holds more than {MAX_FILES} Python files",
            hint="give the job a package of its own",
        )
    release = run / "code" / of_tree(code)[:8] / code.name
    if not release.exists():
        unfinished = release.with_name(f"{release.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for path in sorted(code.rglob("*.py")):
            target = unfinished / path.relative_to(code)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        unfinished.replace(release)
    return release


def write_config(run: Path, config: Mapping[str, Any]) -> None:
    """`config.json`: everything that decides the run's numbers, as it is now."""
    durable.write(
        run / "config.json", json.dumps(config, indent=1, sort_keys=True, default=repr).encode()
    )


def write_settings(run: Path, *, harness: str, code: Path, num_processes: int) -> None:
    """`spiketriage.toml`, unless the run has one."""
    path = run / "spiketriage.toml"
    if path.exists():
        return
    text = (
        f"schema = 1\n\n[run]\nid = {json.dumps(run.name)}\n\n"
        f"[trainer]\nharness = {json.dumps(harness)}\n"
        f"python_path = [{json.dumps(code.parent.relative_to(run).as_posix())}]\n\n"
        f'[launch]\nkind = "torchrun"\nnproc_per_node = {num_processes}\n'
    )
    durable.write(path, text.encode())
