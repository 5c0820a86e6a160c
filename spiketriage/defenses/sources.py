"""What there is to read about a target: its configuration, generations, telemetry, or source code.

A part that is missing or damaged is named and costs only itself; this module never imports or runs
what it reads.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spiketriage.defenses.calls import from_calls
from spiketriage.defenses.keys import from_settings
from spiketriage.defenses.signals import from_scaler, from_steps, from_tensors
from spiketriage.defenses.weigh import Evidence, Layer
from spiketriage.errors import EvidenceError, RefusedError, SpiketriageError, UsageError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts, Manifest
from spiketriage.nouns.incident import RunSettings
from spiketriage.readers.boundary import require_allowed
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

HARNESS = re.compile(r"\A[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CONFIGS = (".json", ".toml", ".yaml", ".yml", ".py")
FIRST_RANK = rank_file(0)  # what the first rank holds beside tensors
# Fields of a checkpoint that are called `config` and whose keys say nothing about stabilizers.
_NOT_SETTINGS = ("param_groups", "generation_config.json")


@dataclass(slots=True, kw_only=True)
class Reading:
    """Evidence about a target, the names of what was read, and sentences about what was not."""

    selectable: Sequence[str]
    evidence: list[Evidence] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def settings(self, settings: Iterable[Setting], layer: Layer) -> None:
        """Take in what settings say."""
        self.evidence += from_settings(tuple(settings), layer, selectable=self.selectable)


def read_target(target: str, selectable: Sequence[str]) -> Reading:
    """Read everything about a run folder, a checkpoint, a configuration, or a `module:factory`.

    Raises:
        EvidenceError: it is missing, or is not what it says.
        RefusedError: it is YAML, or the source of the module is not there.
        UsageError: the name holds what no path can.
    """
    reading = Reading(selectable=selectable)
    if "\0" in target:
        raise UsageError("a target is a path or package.module:factory")
    path = Path(target)
    is_there = _is_there(path)
    if HARNESS.fullmatch(target) and not is_there:
        _harness(reading, target)
    elif not (is_there and path.is_file()):
        _run(reading, path)
    elif path.suffix.lower() in CONFIGS:
        _config_file(reading, path)
    else:
        _checkpoint_file(reading, path)
    return reading


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long; whoever reads it says so
        return False


def _config_file(reading: Reading, path: Path) -> None:
    """A configuration; where it is Python, what it calls too."""
    reading.settings(read_config(path), "config")
    reading.read.append(path.name)
    if path.suffix == ".py":
        files, calls = read_calls(path.stem, [path.parent])
        reading.evidence += from_calls(calls)
        reading.read += [file.name for file in files[1:]]


def _run(reading: Reading, run: Path) -> None:
    settings = read_settings(run)
    require_allowed(
        settings, (), hint=shlex.join(["spiketriage", "defenses", str(settings.config or run)])
    )
    for part in (_telemetry, _generation, _config):
        try:
            part(reading, settings)
        except (EvidenceError, RefusedError) as error:
            reading.notes.append(error.message)


def _config(reading: Reading, settings: RunSettings) -> None:
    if settings.config is not None:
        reading.settings(read_config(settings.config), "config")
        reading.read.append(settings.config.name)


def _telemetry(reading: Reading, settings: RunSettings) -> None:
    telemetry = read_telemetry(settings.telemetry, Names(columns=settings.columns))
    rank = telemetry.ranks[0]
    records = telemetry.lineage(rank)
    reading.evidence += from_steps(records)
    reading.read.append(f"telemetry of rank {rank}, {len(records)} steps")
    _identity(reading, telemetry)


def _identity(reading: Reading, telemetry: Telemetry) -> None:
    """What the newest attempt states about itself."""
    if not telemetry.steps:
        return
    identity = telemetry.identity(telemetry.steps[-1])
    if identity is not None:
        stated = {**identity.hparams, "precision": identity.precision}
        reading.settings(flattened(stated, "telemetry, identity"), "recorded")


def _generation(reading: Reading, settings: RunSettings) -> None:
    """The newest generation, or the newest checkpoint of another trainer where there is none."""
    generation = _newest(_generations(settings.checkpoints))
    if generation is not None:
        facts = native.read_generation(generation, verify=False)
        if facts.manifest is None:
            raise EvidenceError("; ".join(facts.problems))
        _manifest(reading, facts.manifest, generation)
        return
    claims = discover(settings.checkpoints, wanted=lambda claim: claim.kind == "checkpoint").claims
    by_path = {claim.path: claim for claim in reversed(claims)}
    newest = _newest(list(by_path))
    if newest is not None:
        _checkpoint(reading, by_path[newest])


def _generations(folder: Path) -> list[Path]:
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        raise EvidenceError(
            f"{folder}: checkpoints cannot be read: {error.strerror or error}"
        ) from error
    return [path for path in paths if native.claims(path) and native.holds_ours(path)]


def _newest(paths: Sequence[Path]) -> Path | None:
    """The path whose name has the largest numbers."""

    def numbers(path: Path) -> list[int]:
        return [int(digits[:18]) for digits in re.findall(r"\d+", path.name)]

    return max(paths, key=numbers, default=None)


def _manifest(reading: Reading, manifest: Manifest, folder: Path) -> None:
    where = f"{manifest.generation}/MANIFEST.json"
    reading.read.append(where)
    reading.settings(flattened(manifest.hparams, where), "recorded")
    reading.settings(flattened({"schedule": manifest.schedule}, where), "recorded")
    parameters: list[str] = []
    for groups in manifest.tensors.values():
        parameters.extend(groups.get("params", {}))
    reading.evidence += from_tensors(parameters, where)
    scales = [manifest.scheduler.get("loss_scale")]
    if (folder / FIRST_RANK).is_file():
        rank_state = parse_object(folder / FIRST_RANK, read_bytes(folder / FIRST_RANK))
        scales.append(rank_state.get("scaler"))
    for scale in scales:
        if isinstance(scale, Mapping):
            reading.evidence += from_scaler(scale, manifest.generation)


def _checkpoint_file(reading: Reading, path: Path) -> None:
    for claim in claims_on(look(path)):
        if claim.kind == "checkpoint" and claim.confidence >= CONVINCED:
            _checkpoint(reading, claim)
            return
    expected = (
        f"a configuration ({', '.join(CONFIGS)}), a checkpoint, a run folder, or "
        "package.module:factory"
    )
    raise EvidenceError(f"{path}: expected {expected}, found a file of none of these kinds")


def _checkpoint(reading: Reading, claim: Claim) -> None:
    facts = cast("Layout", claim.format).read(claim.path)
    reading.read.append(f"{facts.name} ({facts.layout})")
    parameters = [tensor.name for tensor in facts.tensors if tensor.role == "parameter"]
    reading.evidence += from_tensors(parameters, facts.name)
    for stored in facts.fields:
        _field(reading, facts, stored)


def _field(reading: Reading, facts: CheckpointFacts, stored: FieldFacts) -> None:
    where = facts.name
    if stored.path:
        where = f"{facts.name}/{stored.path}"
    values = {key: _literal(text) for key, text in stored.values.items()}
    if stored.kind == "scaler":
        reading.evidence += from_scaler(values, where)
    elif stored.kind == "config" and not stored.name.endswith(_NOT_SETTINGS):
        settings = [_setting(stored, key, value, where) for key, value in values.items()]
        reading.settings(settings, "recorded")


def _setting(stored: FieldFacts, key: str, value: Any, where: str) -> Setting:
    """A scalar of a field, under the field's own name where that is what the setting is called."""
    if key == "value":
        return Setting(keys=(stored.name,), value=value, where=where)
    keys = tuple(key.split("."))
    is_file = "." in stored.name or stored.name == "training_args"
    if not is_file:
        keys = (stored.name, *keys)
    return Setting(keys=keys, value=value, where=where)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _harness(reading: Reading, target: str) -> None:
    """The source of a harness, below the current folder, the run's `python_path` and PYTHONPATH."""
    roots = [Path.cwd(), *_run_roots(reading)]
    for part in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if part:
            roots.append(Path(part))
    files, calls = read_calls(target.partition(":")[0], roots)
    reading.evidence += from_calls(calls)
    plural = ""
    if len(files) > 1:
        plural = "s"
    reading.read.append(f"{len(files)} source file{plural}, from {files[0]} on")
    reading.notes.append(
        "its settings: a harness is read and not run; the folder of a run of it says more"
    )


def _run_roots(reading: Reading) -> list[Path]:
    """The `python_path` of the run that the current folder lies in, if it lies in one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            try:
                return [Path(part) for part in read_settings(folder).python_path]
            except SpiketriageError as error:
                reading.notes.append(error.message)
            break
    return []
