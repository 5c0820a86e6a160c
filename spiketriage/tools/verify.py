"""`spiketriage verify`: is the incident still what was frozen and recorded, by file and by row.

This module never takes the lease, never writes, and never follows a manifest's path out of
`evidence/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from spiketriage import digests
from spiketriage.errors import EvidenceError, Exit
from spiketriage.evidence import layout
from spiketriage.evidence.bag import MANIFEST, TAG_MANIFEST
from spiketriage.incident import next_step
from spiketriage.incident.audit import audit
from spiketriage.incident.store import Incident, find
from spiketriage.nouns.incident import Artifact, Dossier, StepResult

_IN_PLACE = (
    "pinned",
    "referenced",
)  # kept where they are, so somebody else may change them


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What one part of the examination covered, and a sentence for everything that is wrong."""

    covered: str
    problems: tuple[str, ...]


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    deep: bool = False,
) -> StepResult:
    """Examine the record, the copies, and what was left in place (`deep`: its digests too).

    Raises:
        RefusedError: there is no incident.
    """
    place = find(run_folder, incidents=incidents, wanted=incident)
    examined = _examine(place, run_folder, deep=deep)
    problems = [problem for part in examined for problem in part.problems]
    covered = [part.covered for part in examined]
    verdict = "broken" if problems else "intact"
    if problems:
        summary = f"{place.id}: {len(problems)} broken"
    else:
        summary = f"{place.id}: intact"
    return StepResult(
        incident=place.id,
        exit_code=Exit.INTEGRITY if problems else Exit.DONE,
        verdict=verdict,
        lines=(
            *(f"broken  {problem}" for problem in problems),
            *(f"covered {text}" for text in covered),
            summary,
        ),
        data={"problems": problems, "covered": covered, "deep": deep},
        next_commands=()
        if deep
        else (next_step.command("verify", run_folder, incidents, place.id, "--deep"),),
    )


def _examine(place: Incident, run_folder: Path, *, deep: bool) -> tuple[Examined, ...]:
    evidence = place.folder / layout.EVIDENCE
    bag = _bag(evidence)
    try:
        dossier, broken = place.dossier(), audit(place)
    except EvidenceError as error:
        return (Examined(covered="record: unreadable", problems=(error.message,)), bag)
    num_rows = len(dossier.journal)
    record = Examined(
        covered=f"record: {num_rows} journal rows and every table's chain",
        problems=(*broken, *_sealed(dossier, evidence)),
    )
    return (record, bag, _artifacts(dossier, run_folder, place.folder, deep=deep))


def _sealed(dossier: Dossier, evidence: Path) -> Iterator[str]:
    """The bag against the journal: a file and every line about it can be changed together."""
    path = evidence / TAG_MANIFEST
    if dossier.journal:
        expected = dossier.journal[-1].evidence
    else:
        expected = ""
    if not path.is_file():
        if expected:
            yield f"{path}: missing"
        return
    if not expected:
        yield f"{path}: no row of the journal seals it, so the freeze did not finish"
        return
    seen = digests.sha256_of_file(path)
    if seen != expected:
        yield f"{path}: changed since the freeze: expected sha256 {expected}, found {seen}"


def _bag(evidence: Path) -> Examined:
    manifest, tags = evidence / MANIFEST, evidence / TAG_MANIFEST
    if not manifest.exists():
        return Examined(
            covered="evidence: none",
            problems=(f"{manifest}: missing, so the freeze did not finish",),
        )
    listed, problems = _listed(manifest)
    if problems:
        return Examined(covered="evidence: manifest unreadable", problems=problems)
    about, problems = _listed(tags)
    sentences = list(problems)
    for path, digest in {**about, **listed}.items():
        sentences += _file(evidence, path, digest)
    for path in _payload(evidence):
        if path not in listed:
            sentences.append(f"{evidence / path}: not in {MANIFEST}")
    covered = f"evidence: {len(listed)} files against {MANIFEST}"
    return Examined(covered=covered, problems=tuple(sentences))


def _listed(manifest: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Path → digest as a manifest lists them, and why it cannot be read."""
    try:
        return _parse(manifest.read_text(encoding="utf-8")), ()
    except FileNotFoundError:
        return {}, (f"{manifest}: missing, so the freeze did not finish",)
    except (OSError, ValueError) as error:
        return {}, (f"{manifest}: {error}",)


def _parse(text: str) -> dict[str, str]:
    """Path → digest of a BagIt manifest, whose paths escape line ends and `%` only."""
    listed = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        digest, _, path = line.partition(" ")
        path = path.lstrip(" *")
        if len(digest) != 64 or not path:
            raise ValueError(f"line {number}: expected '<sha256>  <path>', found {line!r}")
        listed[unquote(path, errors="surrogateescape")] = digest.lower()
    return listed


def _file(evidence: Path, path: str, expected: str) -> Iterator[str]:
    target = evidence / path
    if not target.resolve().is_relative_to(evidence.resolve()):
        yield f"{target}: leads out of evidence/, not read"
        return
    if not target.is_file():
        yield f"{target}: missing"
        return
    try:
        seen = digests.sha256_of_file(target)
    except EvidenceError as error:
        yield error.message
        return
    if seen != expected:
        yield f"{target}: changed: expected sha256 {expected}, found {seen}"


def _payload(evidence: Path) -> list[str]:
    data = evidence / layout.PAYLOAD
    return sorted(
        path.relative_to(evidence).as_posix() for path in data.rglob("*") if path.is_file()
    )


def _artifacts(dossier: Dossier, run_folder: Path, folder: Path, *, deep: bool) -> Examined:
    kept = [artifact for artifact in dossier.artifacts if artifact.kept in _IN_PLACE]
    problems = tuple(
        text for artifact in kept for text in _artifact(artifact, run_folder, folder, deep=deep)
    )
    how = "size, time and digest" if deep else "size and time"
    return Examined(covered=f"in place: {len(kept)} artifacts by {how}", problems=problems)


def _artifact(artifact: Artifact, run_folder: Path, folder: Path, *, deep: bool) -> Iterator[str]:
    path = _located(artifact, run_folder, folder)
    if path is None:
        yield f"{run_folder / artifact.path}: missing, and not pinned"
        return
    if path.is_dir():
        return
    try:
        stat = path.stat()
        if stat.st_size != artifact.size_bytes:
            yield f"{path}: changed: expected {artifact.size_bytes} bytes, found {stat.st_size}"
        elif deep and artifact.digest:
            seen = digests.of_file(path)
            if seen != artifact.digest:
                yield (
                    f"{path}: changed: expected {digests.ALGORITHM} {artifact.digest}, found {seen}"
                )
        elif stat.st_mtime_ns != artifact.mtime_ns:
            yield (
                f"{path}: written since the freeze (same size, other time); --deep compares "
                "its digest"
            )
    except OSError as error:
        yield f"{path}: cannot be read: {error.strerror or error}"
    except EvidenceError as error:
        yield error.message


def _located(artifact: Artifact, run_folder: Path, folder: Path) -> Path | None:
    """Where the artifact lies now: at its place, else at its hard link, which outlives it there."""
    source = run_folder / artifact.path
    return next(
        (path for path in (source, layout.pinned(folder, run_folder, source)) if path.exists()),
        None,
    )
