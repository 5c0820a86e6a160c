"""Generation files against their manifests, measured anew: part of `spiketriage hash`.

This module never decides whether a generation is good; `diagnosis.anchors` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.diagnosis.findings import agrees, counted, listed, untestable
from spiketriage.errors import EvidenceError
from spiketriage.evidence import frozen as evidence
from spiketriage.evidence import gaps, layout
from spiketriage.evidence.hash_findings import GENERATION_DIGESTS as NAME
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts
from spiketriage.nouns.incident import Dossier, Finding, RunSettings, Where
from spiketriage.readers.checkpoints.generations import read_generation, read_generations
from spiketriage.readers.scan.spread import unmeasured_path
from spiketriage.wire.generation import COMPLETE_NAME, MANIFEST_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """What was measured, and the finding.

    `differing` has a sentence for each file, as has `unmeasured`.
    """

    facts: tuple[GenerationFacts, ...]
    measured: tuple[GenerationFacts, ...]
    differing: tuple[str, ...]
    finding: Finding
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """One file that is not what the manifest says."""

    generation: GenerationFacts
    path: str
    expected: str
    seen: str
    told: str = ""
    note: str = ""

    @property
    def file(self) -> str:
        """The file's path on this machine."""
        return str(self.generation.path / self.path)

    def sentence(self, run: Path) -> str:
        """The sentence for people, with the tensor if it could be told."""
        if self.told:
            return self.told.replace(f"{run}/", "")
        where = layout.artifact_path(run, self.generation.path / self.path)
        told = next(
            (text for text in self.generation.problems if f"/{self.path}: digest" in text), ""
        )
        if "(tensor" in told:
            tensor = f" {told[told.index('(tensor') :]}"
        else:
            tensor = ""
        return f"{where}: {self.note}expected {self.expected}, found {self.seen}{tensor}"

    @property
    def name(self) -> str:
        """The generation, and the file where it is told apart."""
        if self.path:
            return f"{self.generation.name}/{self.path}"
        return self.generation.name


def examine_generations(
    incident_folder: Path, settings: RunSettings, dossier: Dossier, executor: Executor | None = None
) -> Generations:
    """Read every file of every generation once.

    One that the run has deleted is read where it is pinned.
    """
    try:
        facts = read_generations(settings.checkpoints, verify=True, executor=executor)
        facts += _deleted(incident_folder, settings, dossier, facts, executor)
    except EvidenceError as error:
        told = untestable(NAME, error.message, judged=False)
        return Generations(facts=(), measured=(), differing=(error.message,), finding=told)
    unfinished = tuple(one for one in facts if gaps.unfinished(one))
    frozen = {
        one.name: one for one in evidence.frozen_generations(dossier, incident_folder, settings)
    }
    unmeasured = tuple(
        problem for one in facts for problem in one.problems if unmeasured_path(problem)
    )
    lost = {unmeasured_path(problem) for problem in unmeasured}
    differences = [
        difference
        for one in facts
        for difference in (
            _differences(incident_folder, one)
            if one.layout == NATIVE
            else _foreign(one, frozen.get(one.name))
        )
        if not unmeasured_path(difference.told) and (difference.told or difference.file not in lost)
    ]
    facts = tuple(_with_changes(one, differences) for one in facts)
    return Generations(
        facts=facts,
        measured=tuple(
            _against_the_freeze(one, frozen.get(one.name))
            for one in facts
            if not any(map(unmeasured_path, one.problems))
        ),
        differing=(
            *(one.sentence(settings.run) for one in differences),
            *_nothing_complete(facts, unfinished),
        ),
        finding=_finding(facts, unfinished, differences, unmeasured, settings.run),
        unmeasured=tuple(one.replace(f"{settings.run}/", "") for one in unmeasured),
    )


def _with_changes(
    generation: GenerationFacts, differences: Sequence[_Difference]
) -> GenerationFacts:
    """A generation of other people's layout that is no longer what was frozen must not be replayed from."""
    changed = []
    for one in differences:
        if one.note and one.generation.name == generation.name:
            changed.append(f"{one.file}: {one.note}expected {one.expected}, found {one.seen}")
    if changed:
        return replace(generation, problems=(*generation.problems, *changed))
    return generation


def _against_the_freeze(
    generation: GenerationFacts, frozen: GenerationFacts | None
) -> GenerationFacts:
    """Its digests as the first to read it saw them, so that the next `hash` compares with those again."""
    if generation.layout == NATIVE or frozen is None:
        return generation
    return replace(generation, file_digests={**generation.file_digests, **frozen.file_digests})


def _nothing_complete(
    facts: Sequence[GenerationFacts], unfinished: Sequence[GenerationFacts]
) -> Iterator[str]:
    if facts and len(unfinished) == len(facts):
        yield (
            "no generation is complete, so none can be vouched for: "
            f"{gaps.counted_unfinished(unfinished)}"
        )


def _deleted(
    incident_folder: Path,
    settings: RunSettings,
    dossier: Dossier,
    facts: tuple[GenerationFacts, ...],
    executor: Executor | None,
) -> tuple[GenerationFacts, ...]:
    gone = {one.name for one in evidence.frozen_generations(dossier, incident_folder, settings)}
    found = []
    for name in sorted(gone - {one.name for one in facts}):
        path = evidence.generation_path(incident_folder, settings, name)
        if path.is_dir():
            root = path.parents[len(Path(name).parts) - 1]
            found.append(read_generation(root, name, verify=True, executor=executor))
    return tuple(found)


def _foreign(generation: GenerationFacts, frozen: GenerationFacts | None) -> list[_Difference]:
    """Damage that the layout itself shows, then files that are not what they were when they were frozen."""
    found = []
    for problem in generation.problems:
        found.append(
            _Difference(generation=generation, path="", expected="", seen="", told=problem)
        )
    before = frozen.file_digests if frozen is not None else {}
    for path, expected in before.items():
        seen = generation.file_digests.get(path, "nothing that can be read")
        if seen != expected:
            changed = "changed since the freeze: "
            found.append(
                _Difference(
                    generation=generation, path=path, expected=expected, seen=seen, note=changed
                )
            )
    return found


def _differences(incident_folder: Path, generation: GenerationFacts) -> list[_Difference]:
    found: list[_Difference] = []
    manifest = generation.manifest
    if gaps.unfinished(generation):
        return found  # nobody has promised that its files are whole
    if manifest is None and evidence.frozen_manifest(incident_folder, generation.name) is not None:
        told = _Difference(
            generation=generation, path=MANIFEST_NAME, expected="as frozen", seen="unreadable"
        )
        found.append(told)
    if not generation.complete and (generation.path / COMPLETE_NAME).exists():
        expected, seen = "the digest of MANIFEST.json", "another"
        found.append(
            _Difference(generation=generation, path=COMPLETE_NAME, expected=expected, seen=seen)
        )
    if manifest is None and not found:
        told = _Difference(
            generation=generation,
            path=MANIFEST_NAME,
            expected="a manifest",
            seen="none that is intact",
        )
        found.append(told)
    for entry in manifest.files if manifest is not None else ():
        seen = generation.file_digests.get(entry.path, "nothing that can be read")
        if seen != entry.digest:
            told = _Difference(
                generation=generation, path=entry.path, expected=entry.digest, seen=seen
            )
            found.append(told)
    return found


def _finding(
    facts: tuple[GenerationFacts, ...],
    unfinished: tuple[GenerationFacts, ...],
    differences: list[_Difference],
    unmeasured: Sequence[str],
    run: Path,
) -> Finding:
    if not facts:
        return untestable(NAME, "there is no generation", judged=False)
    num_complete = len(facts) - len(unfinished)
    if not num_complete:
        return untestable(
            NAME, f"no generation is complete: {gaps.counted_unfinished(unfinished)}", judged=False
        )
    if not differences and unmeasured:
        told = f"{counted(len(unmeasured), 'file')} could not be measured: {unmeasured[0]}"
        return untestable(NAME, told, judged=False)
    if not differences:
        but = f"; not compared: {gaps.counted_unfinished(unfinished)}" if unfinished else ""
        has_manifests = any(one.layout == NATIVE for one in facts)
        promise = (
            "is what its manifest says"
            if has_manifests
            else "has no damage that its layout can show"
        )
        return agrees(
            NAME,
            f"every file of {counted(num_complete, 'generation')} {promise}{but}",
            judged=False,
        )
    first = differences[0]
    names = dict.fromkeys(one.name for one in differences)
    has_manifest = any(one.generation.layout == NATIVE for one in differences)
    what = "differ from their manifest" if has_manifest else "damaged, or changed since the freeze"
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"{what}: {listed(names)}",
        where=Where(
            step=first.generation.step,
            key=first.generation.name,
            path=layout.artifact_path(run, first.generation.path / first.path),
        ),
        expected=first.expected or "a checkpoint that its layout vouches for",
        seen=first.seen or first.sentence(run),
        magnitude=float(len(differences)),
        judged=False,
    )
