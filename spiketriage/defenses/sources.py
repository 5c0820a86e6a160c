"""What there is to read about the defences of a target.

Its configuration, generations, telemetry, or source code.

A part that is missing or damaged is told and costs only itself; this module never imports or runs
what it reads.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spiketriage.defenses.calls import from_calls
from spiketriage.defenses.signals import from_scaler, from_steps, from_tensors
from spiketriage.defenses.weigh import Evidence, Layer, from_settings
from spiketriage.errors import EvidenceError, RefusedError, SpiketriageError, UsageError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts, Manifest
from spiketriage.nouns.incident import RunSettings
from spiketriage.readers.checkpoints import native
from spiketriage.readers.config_file import Setting, flattened, read_config
from spiketriage.readers.discover import CONVINCED, Claim, claims_on, discover
from spiketriage.readers.json_file import parse_object, read_bytes
from spiketriage.readers.look import look
from spiketriage.readers.settings import FILE_NAME, read_settings
from spiketriage.readers.source_calls import read_calls
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.wire.generation import rank_file

if TYPE_CHECKING:
    from spiketriage.readers.checkpoints.formats import Layout

HARNESS = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CONFIGS = (".json", ".toml", ".yaml", ".yml", ".py")
FIRST_RANK = rank_file(0)  # what the first rank holds beside tensors
_NOT_SETTINGS = ("param_groups", "generation_config.json")  # a checkpoint's, of no defence's name


@dataclass(slots=True, kw_only=True)
class Told:
    """Evidence, the names of what was read, and sentences about what was not."""

    switches: Sequence[str]
    evidence: list[Evidence] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def settings(self, settings: Iterable[Setting], layer: Layer) -> None:
        """Take in what settings say."""
        self.evidence += from_settings(tuple(settings), layer, switches=self.switches)


def sources_of(target: str, switches: Sequence[str]) -> Told:
    """Read everything about `target`.

    A run folder, a checkpoint, a configuration file, or `package.module:factory`.

    Raises:
        EvidenceError: it is missing, or is not what it says. RefusedError: YAML, or no source of
        the module.
        UsageError: the name holds what no path can.
    """
    told = Told(switches=switches)
    if "\0" in target:
        raise UsageError("a target is a path or package.module:factory")
    path = Path(target)
    is_file = _is_there(path) and path.is_file()
    if HARNESS.fullmatch(target) and not _is_there(path):
        _harness(told, target)
    elif is_file and path.suffix.lower() in CONFIGS:
        _file(told, path)
    elif is_file:
        _checkpoint_file(told, path)
    else:
        _run(told, path)
    return told


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long; whoever reads it says so
        return False


def _file(told: Told, path: Path) -> None:
    """A configuration; where it is Python, what it calls too."""
    told.settings(read_config(path), "config")
    told.read.append(path.name)
    if path.suffix == ".py":
        files, calls = read_calls(path.stem, [path.parent])
        told.evidence += from_calls(calls)
        told.read += [file.name for file in files[1:]]


def _run(told: Told, run: Path) -> None:
    settings = read_settings(run)
    for part in (_telemetry, _generation, _config):
        try:
            part(told, settings)
        except (EvidenceError, RefusedError) as error:
            told.notes.append(error.message)


def _config(told: Told, settings: RunSettings) -> None:
    if settings.config is not None:
        told.settings(read_config(settings.config), "config")
        told.read.append(settings.config.name)


def _telemetry(told: Told, settings: RunSettings) -> None:
    telemetry = read_telemetry(settings.telemetry, Names(columns=settings.columns))
    ranks = telemetry.ranks
    told.evidence += from_steps(telemetry.lineage(ranks[0]))
    told.read.append(f"telemetry of rank {ranks[0]}, {len(telemetry.lineage(ranks[0]))} steps")
    _identity(told, telemetry)


def _identity(told: Told, telemetry: Telemetry) -> None:
    """What the newest attempt states about itself."""
    if telemetry.steps:
        identity = telemetry.identity(telemetry.steps[-1])
    else:
        identity = None
    if identity is not None:
        stated = {**identity.hparams, "precision": identity.precision}
        told.settings(flattened(stated, "telemetry, identity"), "recorded")


def _generation(told: Told, settings: RunSettings) -> None:
    """The newest generation, ours or of a known layout."""
    ours = _newest(
        [
            path
            for path in _children(settings.checkpoints)
            if native.claims(path) and native.holds_ours(path)
        ]
    )
    if ours is not None:
        facts = native.read_generation(ours, verify=False)
        if facts.manifest is None:
            raise EvidenceError("; ".join(facts.problems))
        _manifest(told, facts.manifest, ours)
        return
    claims = discover(settings.checkpoints, wanted=lambda claim: claim.kind == "checkpoint").claims
    by_path = {claim.path: claim for claim in reversed(claims)}
    newest = _newest(list(by_path))
    if newest is not None:
        _checkpoint(told, by_path[newest])


def _manifest(told: Told, manifest: Manifest, folder: Path) -> None:
    where = f"{manifest.generation}/MANIFEST.json"
    told.read.append(where)
    told.settings(flattened(manifest.hparams, where), "recorded")
    told.settings(flattened({"schedule": manifest.schedule}, where), "recorded")
    parameters = []
    for groups in manifest.tensors.values():
        for name in groups.get("params", {}):
            parameters.append(name)
    told.evidence += from_tensors(parameters, where)
    states = [manifest.scheduler.get("loss_scale")]
    if (folder / FIRST_RANK).is_file():
        states.append(
            parse_object(folder / FIRST_RANK, read_bytes(folder / FIRST_RANK)).get("scaler")
        )
    for state in states:
        if isinstance(state, Mapping):
            told.evidence += from_scaler(state, manifest.generation)


def _checkpoint_file(told: Told, path: Path) -> None:
    claims = []
    for one in claims_on(look(path)):
        if one.kind == "checkpoint" and one.confidence >= CONVINCED:
            claims.append(one)
    if not claims:
        expected = (
            f"a configuration ({', '.join(CONFIGS)}), a checkpoint, a run folder, or "
            "package.module:factory"
        )
        raise EvidenceError(f"{path}: expected {expected}, found a file of none of these kinds")
    _checkpoint(told, claims[0])


def _checkpoint(told: Told, claim: Claim) -> None:
    facts = cast("Layout", claim.format).read(claim.path)
    told.read.append(f"{facts.name} ({facts.layout})")
    parameters = [tensor.name for tensor in facts.tensors if tensor.role == "parameter"]
    told.evidence += from_tensors(parameters, facts.name)
    for one in facts.fields:
        _field(told, facts, one)


def _field(told: Told, facts: CheckpointFacts, one: FieldFacts) -> None:
    values = {key: _literal(text) for key, text in one.values.items()}
    if one.path:
        where = f"{facts.name}/{one.path}"
    else:
        where = facts.name
    if one.kind == "scaler":
        told.evidence += from_scaler(values, where)
    elif one.kind == "config" and not one.name.endswith(_NOT_SETTINGS):
        told.settings(
            [_setting(one, key, value, where) for key, value in values.items()], "recorded"
        )


def _setting(one: FieldFacts, key: str, value: Any, where: str) -> Setting:
    """A scalar of a field, under the field's own name where that is what the setting is called."""
    if key == "value":
        return Setting(keys=(one.name,), value=value, where=where)
    is_file = "." in one.name or one.name == "training_args"
    return Setting(
        keys=(*(() if is_file else (one.name,)), *key.split(".")), value=value, where=where
    )


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _harness(told: Told, target: str) -> None:
    """The source of a harness, below the current folder, the run's `python_path` and PYTHONPATH."""
    here = Path.cwd()
    roots = [
        here,
        *(Path(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part),
    ]
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            try:
                roots[1:1] = [Path(part) for part in read_settings(folder).python_path]
            except SpiketriageError as error:
                told.notes.append(error.message)
            break
    files, calls = read_calls(target.partition(":")[0], roots)
    told.evidence += from_calls(calls)
    told.read.append(f"{len(files)} source file{'s' if len(files) > 1 else ''}, from {files[0]} on")
    told.notes.append(
        "its settings: a harness is read and not run; the folder of a run of it says more"
    )


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise EvidenceError(
            f"{folder}: checkpoints cannot be read: {error.strerror or error}"
        ) from error


def _newest(paths: Sequence[Path]) -> Path | None:
    """The path whose name has the largest numbers."""
    return max(
        paths,
        key=lambda path: [int(part[:18]) for part in re.findall(r"\d+", path.name)],
        default=None,
    )
