"""Where the trials of an incident run: which folders, which code, how many processes.

It never starts a process and never decides what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spiketriage.diagnosis.setting import Setting
from spiketriage.diagnosis.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The run, the trials folder, and one code folder per value of the factor `code`.

    `launcher` is the kind of launch that the run's settings name. `digests` are what the frozen
    manifests say of every generation's files, by generation and path; `recorded` are the trials'
    files that the incident vouches for, by path below the trials folder.
    """

    run: Path
    trials: Path
    checkpoints: Path
    digests: Mapping[str, Mapping[str, str]]
    recorded: Mapping[str, str]
    harness: str
    launcher: str
    codes: Mapping[str, Path]
    num_processes: int
    num_threads: int


def make_site(view: View, setting: Setting, trials: Path, recorded: Mapping[str, str]) -> Site:
    """Where this incident's trials run: on the code that production ran at the suspect step."""
    settings = view.settings
    identity = view.telemetry.identity(setting.suspect)
    if identity is not None:
        deployed = _code_parent(view, identity.code_path)
        num_processes, num_threads = identity.world_size, identity.num_threads
    else:
        deployed = Path(next(iter(settings.python_path), str(settings.run)))
        num_processes, num_threads = settings.num_processes, 1
    codes = {"deployed": deployed}
    if setting.reference_code is not None:
        codes["reference"] = _code_parent(view, setting.reference_code)
    return Site(
        run=settings.run,
        trials=trials.absolute(),  # workers have a working folder of their own
        checkpoints=_checkpoints(view, setting).absolute(),
        digests=_digests(view),
        recorded=recorded,
        harness=settings.harness,
        launcher=settings.launch_kind,
        codes=codes,
        num_processes=num_processes,
        num_threads=num_threads,
    )


def _checkpoints(view: View, setting: Setting) -> Path:
    """The folder that still holds both good generations.

    It is the run's, or the incident's pins once the run has rotated them away.
    """
    for facts in view.generations:
        is_needed = facts.name in (setting.known_good, setting.older_good)
        if is_needed and facts.path.parent != view.settings.checkpoints:
            return facts.path.parent
    return view.settings.checkpoints


def _digests(view: View) -> dict[str, dict[str, str]]:
    digests: dict[str, dict[str, str]] = {}
    for manifest in view.manifests():
        digests[manifest.generation] = {entry.path: entry.digest for entry in manifest.files}
    return digests


def _code_parent(view: View, code_path: str) -> Path:
    return (view.settings.run / code_path).parent
