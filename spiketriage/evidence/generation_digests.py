"""Generation files against their manifests, measured anew: part of `spiketriage hash`.

This module never decides whether a generation is good; `diagnosis.anchors` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.errors import EvidenceError
from spiketriage.evidence import frozen as evidence
from spiketriage.evidence import gaps, layout
from spiketriage.evidence.hash_findings import GENERATION_DIGESTS as NAME
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts
from spiketriage.nouns.incident import Dossier, Finding, RunSettings, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.readers.boundary import led_out
from spiketriage.readers.checkpoints.generations import read_generation, read_generations
from spiketriage.readers.scan.spread import unmeasured_path
from spiketriage.wire.generation import COMPLETE_NAME, MANIFEST_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """What was measured, and the finding; `differing` and `unmeasured` say a sentence a file."""

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
    sentence: str = ""
    note: str = ""

    @property
    def file(self) -> str:
        """The file's path on this machine."""
        return str(self.generation.path / self.path)

    def in_words(self, run: Path) -> str:
        """The sentence for people, with the tensor where a problem of the generation names it."""
        if self.sentence:
            return self.sentence.replace(f"{run}/", "")
        where = layout.artifact_path(run, self.generation.path / self.path)
        tensor = ""
        for problem in self.generation.problems:
            if f"/{self.path}: digest" in problem and "(tensor" in problem:
                tensor = f" {problem[problem.index('(tensor') :]}"
                break
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
    """Read every file of every generation once; what the run has deleted, where it is pinned."""
    try:
        read = read_generations(settings.checkpoints, verify=True, executor=executor)
        facts = tuple(each for each in read if led_out(settings, each.path) is None)
        facts += _deleted(incident_folder, settings, dossier, facts, executor)
    except EvidenceError as error:
        finding = untestable(NAME, error.message, judged=False)
        return Generations(facts=(), measured=(), differing=(error.message,), finding=finding)
    unfinished = tuple(generation for generation in facts if gaps.unfinished(generation))
    frozen = {
        generation.name: generation
        for generation in evidence.frozen_generations(dossier, incident_folder, settings)
    }
    unmeasured: list[str] = []
    for generation in facts:
        unmeasured += filter(unmeasured_path, generation.problems)
    lost = {unmeasured_path(problem) for problem in unmeasured}
    differences = []
    for generation in facts:
        if generation.layout == NATIVE:
            seen = _differences(incident_folder, generation)
        else:
            seen = _foreign(generation, frozen.get(generation.name))
        for difference in seen:
            if difference.sentence:
                is_lost = bool(unmeasured_path(difference.sentence))
            else:
                is_lost = difference.file in lost
            if not is_lost:
                differences.append(difference)
    facts = tuple(_with_changes(generation, differences) for generation in facts)
    return Generations(
        facts=facts,
        measured=tuple(
            _against_the_freeze(generation, frozen.get(generation.name))
            for generation in facts
            if not any(map(unmeasured_path, generation.problems))
        ),
        differing=(
            *(difference.in_words(settings.run) for difference in differences),
            *_nothing_complete(facts, unfinished),
        ),
        finding=_finding(facts, unfinished, differences, unmeasured, settings.run),
        unmeasured=tuple(problem.replace(f"{settings.run}/", "") for problem in unmeasured),
    )


def _with_changes(
    generation: GenerationFacts, differences: Sequence[_Difference]
) -> GenerationFacts:
    """A foreign checkpoint that is no longer what was frozen has a problem: no replay from it."""
    changed = []
    for difference in differences:
        if difference.note and difference.generation.name == generation.name:
            values = f"expected {difference.expected}, found {difference.seen}"
            changed.append(f"{difference.file}: {difference.note}{values}")
    if changed:
        return replace(generation, problems=(*generation.problems, *changed))
    return generation


def _against_the_freeze(
    generation: GenerationFacts, frozen: GenerationFacts | None
) -> GenerationFacts:
    """Its digests as whoever read it first saw them, for the next `hash` to compare with again."""
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
    gone = {
        generation.name
        for generation in evidence.frozen_generations(dossier, incident_folder, settings)
    }
    generations = []
    for name in sorted(gone - {generation.name for generation in facts}):
        path = evidence.generation_path(incident_folder, settings, name)
        if path.is_dir():
            root = path.parents[len(Path(name).parts) - 1]
            generations.append(read_generation(root, name, verify=True, executor=executor))
    return tuple(generations)


def _foreign(generation: GenerationFacts, frozen: GenerationFacts | None) -> list[_Difference]:
    """Damage that the layout itself shows, then files that are not what was frozen."""
    differences = []
    for problem in generation.problems:
        differences.append(
            _Difference(generation=generation, path="", expected="", seen="", sentence=problem)
        )
    before = frozen.file_digests if frozen is not None else {}
    for path, expected in before.items():
        seen = generation.file_digests.get(path, "nothing that can be read")
        if seen != expected:
            changed = "changed since the freeze: "
            differences.append(
                _Difference(
                    generation=generation, path=path, expected=expected, seen=seen, note=changed
                )
            )
    return differences


def _differences(incident_folder: Path, generation: GenerationFacts) -> list[_Difference]:
    """Files of a generation of ours that are not what its manifest says."""
    differences: list[_Difference] = []
    manifest = generation.manifest

    def differs(path: str, expected: str, seen: str) -> None:
        differences.append(
            _Difference(generation=generation, path=path, expected=expected, seen=seen)
        )

    if gaps.unfinished(generation):
        return differences  # nobody has promised that its files are whole
    if manifest is None and evidence.frozen_manifest(incident_folder, generation.name) is not None:
        differs(MANIFEST_NAME, "as frozen", "unreadable")
    if not generation.complete and (generation.path / COMPLETE_NAME).exists():
        differs(COMPLETE_NAME, "the digest of MANIFEST.json", "another")
    if manifest is None and not differences:
        differs(MANIFEST_NAME, "a manifest", "none that is intact")
    for entry in manifest.files if manifest is not None else ():
        seen = generation.file_digests.get(entry.path, "nothing that can be read")
        if seen != entry.digest:
            differs(entry.path, entry.digest, seen)
    return differences


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
        why = f"{counted(len(unmeasured), 'file')} could not be measured: {unmeasured[0]}"
        return untestable(NAME, why, judged=False)
    if not differences:
        but = f"; not compared: {gaps.counted_unfinished(unfinished)}" if unfinished else ""
        has_manifests = any(generation.layout == NATIVE for generation in facts)
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
    names = dict.fromkeys(difference.name for difference in differences)
    has_manifest = any(difference.generation.layout == NATIVE for difference in differences)
    if has_manifest:
        what = "differ from their manifest"
    elif all(difference.note for difference in differences):
        what = "changed since the freeze"
    else:
        what = "do not hold what their layout promises"
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
        seen=first.seen or first.in_words(run),
        magnitude=float(len(differences)),
        judged=False,
    )
