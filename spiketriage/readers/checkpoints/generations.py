"""The generations of a run, whoever saved them: ours, else every checkpoint of a known layout.

This module never loads a tensor into a framework and never raises for a damaged checkpoint: it says
what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, Damage, GenerationFacts, Measurement
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints import native, rank_files
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.comparison import Measured, differences
from spiketriage.readers.discover import CONVINCED, Claim, claims_on, discover
from spiketriage.readers.look import look
from spiketriage.readers.scan.moments import moment_oddities
from spiketriage.readers.scan.oddities import nonfinite, oddities, suspicions
from spiketriage.readers.scan.run import measure

if TYPE_CHECKING:
    # The table imports every layout, of which a run of our own needs none.
    from spiketriage.readers.checkpoints.formats import Layout


def read_generations(
    folder: Path, *, verify: bool, executor: Executor | None = None
) -> tuple[GenerationFacts, ...]:
    """Every generation in `folder`, by step; `verify` reads every byte of each.

    Raises:
        EvidenceError: the folder is missing or cannot be read.
    """
    try:
        children = sorted(folder.iterdir())
    except OSError as error:
        raise EvidenceError(
            f"{folder}: checkpoints cannot be read: {error.strerror or error}"
        ) from error
    generations = []
    for path in children:
        if _is_ours(path):
            generations.append(native.read_generation(path, verify=verify, executor=executor))
    if generations:
        return _by_step(generations)
    claims = discover(folder, wanted=lambda claim: claim.kind == "checkpoint").claims
    readings = [_read(claim, folder, verify=verify, executor=executor) for claim in claims]
    return _by_step(_compared(_among_ranks(readings)))


def read_generation(
    folder: Path, name: str, *, verify: bool, executor: Executor | None = None
) -> GenerationFacts:
    """The generation `name` in `folder`; what is wrong with it is in `problems`, in sentences."""
    path = folder / name
    if _is_ours(path):
        return native.read_generation(path, verify=verify, executor=executor)
    try:
        claim = _claim(path)
    except EvidenceError as error:
        return _unreadable(folder, path, "", error.message)
    if claim is None:
        return _unreadable(folder, path, "", f"{path}: is no checkpoint of a known layout any more")
    return _read(claim, folder, verify=verify, executor=executor).generation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A checkpoint of somebody else, and its counts where its bytes were read."""

    generation: GenerationFacts
    measured: Measured | None = None


def _among_ranks(readings: Iterable[_Reading]) -> Iterator[_Reading]:
    """Each file that a rank saved, with what the first rank's of the same step says against it."""
    firsts: dict[str, Measured] = {}
    for reading in sorted(readings, key=lambda reading: reading.generation.name):
        generation, measured = reading.generation, reading.measured
        file = rank_files.rank_file(generation.name)
        if file is None or measured is None or not generation.complete:
            yield reading
            continue
        first = firsts.setdefault(file.shared_name, measured)
        if first is measured:
            yield reading
            continue
        parted = rank_files.compared(first, measured)
        generation = replace(
            generation,
            odd=(*generation.odd, *parted.odd),
            notes=(*generation.notes, *parted.notes),
        )
        yield replace(reading, generation=generation)


def _compared(readings: Iterable[_Reading]) -> Iterator[GenerationFacts]:
    """Each generation, with what cannot have become of the one before it in its folder.

    What a rank saved is compared with what the same rank saved before.
    """
    before: dict[tuple[Path, int | None], Measured] = {}
    for reading in sorted(readings, key=lambda reading: _order(reading.generation)):
        generation, measured = reading.generation, reading.measured
        if measured is None or not generation.complete:
            yield generation
            continue
        file = rank_files.rank_file(generation.path.name)
        line = generation.path.parent, None if file is None else file.rank
        earlier = before.get(line)
        if earlier is not None and earlier.facts.layout == generation.layout:
            odd = tuple(differences(earlier, measured))
            generation = replace(generation, odd=(*generation.odd, *odd))
        before[line] = measured
        yield generation


def _by_step(generations: Iterable[GenerationFacts]) -> tuple[GenerationFacts, ...]:
    """In order of step and name; those whose step is not known come first."""
    return tuple(sorted(generations, key=_order))


def _order(facts: GenerationFacts) -> tuple[int, str]:
    return (-1 if facts.step is None else facts.step, facts.name)


def _is_ours(path: Path) -> bool:
    if not native.claims(path):
        return False
    try:
        return native.holds_ours(path) or _claim(path) is None
    except EvidenceError:
        return True  # it cannot be looked at, which the reader of our own layout says


def _claim(path: Path) -> Claim | None:
    for claim in claims_on(look(path)):
        if claim.kind == "checkpoint" and claim.confidence >= CONVINCED:
            return claim
    return None


def _read(claim: Claim, folder: Path, *, verify: bool, executor: Executor | None) -> _Reading:
    layout = cast("Layout", claim.format)
    try:
        facts = layout.read(claim.path)
    except EvidenceError as error:
        return _Reading(generation=_unreadable(folder, claim.path, layout.NAME, error.message))
    if claim.path == folder:
        facts = replace(facts, files=_named_files(facts))
    measured = Measurement(files=(), stats={}, damage=(), problems=())
    if not verify:
        return _Reading(generation=_generation(folder, facts, measured))
    measured = measure(facts, is_full=True, executor=executor)
    return _Reading(
        generation=_generation(folder, facts, measured),
        measured=Measured(facts=facts, measurement=measured),
    )


def _named_files(facts: CheckpointFacts) -> tuple[StoredFile, ...]:
    """The files that hold its state: beside weights right in a run's folder lies the whole run."""
    named = set()
    for tensor in facts.tensors:
        for chunk in tensor.chunks:
            named.add(chunk.path)
    named |= {field.path for field in facts.fields} | {extent.path for extent in facts.extents}
    return tuple(file for file in facts.files if file.path in named)


def _generation(folder: Path, facts: CheckpointFacts, measured: Measurement) -> GenerationFacts:
    problems = [*facts.problems, *_disagreement(facts)]
    problems += [_sentence(facts, damage) for damage in measured.damage]
    problems += measured.problems
    return GenerationFacts(
        name=facts.path.relative_to(folder).as_posix(),
        path=facts.path,
        step=facts.step,
        manifest=None,
        complete=facts.complete,
        file_digests={file.path: file.digest for file in measured.files},
        nonfinite=tuple(nonfinite(facts.tensors, measured)),
        problems=tuple(problems),
        layout=facts.layout,
        stated_steps={stated.source: stated.step for stated in facts.stated_steps},
        world_size=facts.world_size,
        interrupted=facts.interrupted,
        odd=(*oddities(facts.tensors, measured), *moment_oddities(facts, measured)),
        notes=(*facts.notes, *suspicions(facts.tensors, measured)),
    )


def _disagreement(facts: CheckpointFacts) -> Iterator[str]:
    if not facts.steps_agree:
        steps = steps_in_words({stated.source: stated.step for stated in facts.stated_steps})
        yield f"{facts.path}: its parts are not of one step: {steps}"


def steps_in_words(stated: Mapping[str, int]) -> str:
    """What each place states: `3 (the name checkpoint-3) and 4 (scheduler.pt: last_epoch)`."""
    by_step: dict[int, list[str]] = {}
    for source, step in stated.items():
        by_step.setdefault(step, []).append(source)
    return " and ".join(f"{step} ({some(by_step[step])})" for step in sorted(by_step))


def _sentence(facts: CheckpointFacts, damage: Damage) -> str:
    path = facts.path / damage.path if damage.path else facts.path
    owners = set()
    for tensor in facts.tensors:
        for chunk in tensor.chunks:
            if chunk.path == damage.path and chunk.start < damage.end and damage.start < chunk.end:
                owners.add(tensor.parameter)
    # An optimizer's own keys may be numbers: the damage is called by the parameters then.
    unnamed = [name for name in owners if name and name not in damage.name]
    whose = f", of {some(unnamed)}" if unnamed else ""
    where = f"bytes {damage.start} to {damage.end}"
    return (
        f"{path}: {damage.name}{whose} ({where}): expected {damage.expected}, found {damage.seen}"
    )


def _unreadable(folder: Path, path: Path, layout: str, problem: str) -> GenerationFacts:
    return GenerationFacts(
        name=path.relative_to(folder).as_posix(),
        path=path,
        step=None,
        manifest=None,
        complete=False,
        file_digests={},
        nonfinite=(),
        problems=(problem,),
        layout=layout or "unknown",
    )
