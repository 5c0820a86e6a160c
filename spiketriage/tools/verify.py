"""`spiketriage verify`: is the incident still what was frozen and recorded, by file and by row.

This module never takes the lease, never writes, and never follows a manifest's path out of
`evidence/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from spiketriage import digests
from spiketriage.errors import EvidenceError, Exit
from spiketriage.evidence import layout
from spiketriage.evidence.bag import BAGIT, MANIFEST, TAG_MANIFEST
from spiketriage.incident import next_step
from spiketriage.incident.audit import audit
from spiketriage.incident.store import Incident, find
from spiketriage.nouns.incident import Artifact, Dossier, StepResult
from spiketriage.tools import written_files

_IN_PLACE = (
    "pinned",
    "referenced",
)  # kept where they are, so somebody else may change them
_DIGESTS = {"checkpoint": digests.tree_of_file}  # read in pieces; an index digests shards whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What one part of the examination covered, and a sentence for everything that is wrong.

    `interrupted` names what a command left that did not end: nothing vouches for it.
    """

    covered: str
    problems: tuple[str, ...]
    interrupted: tuple[str, ...] = ()


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    deep: bool = False,
    head: str = "",
) -> StepResult:
    """Examine the record, the copies, and what was left in place (`deep`: its digests too).

    `head` is a head of the journal as somebody noted it: it must still be in the journal.

    Raises:
        RefusedError: there is no incident.
    """
    place = find(run_folder, incidents=incidents, wanted=incident)
    examined = _examine(place, run_folder, deep=deep, head=head)
    problems = [problem for part in examined for problem in part.problems]
    interrupted = [text for part in examined for text in part.interrupted]
    covered = [part.covered for part in examined]
    exit_code, verdict, summary = Exit.DONE, "intact", "intact"
    if problems:
        exit_code, verdict, summary = Exit.INTEGRITY, "broken", f"{len(problems)} broken"
    elif interrupted:
        exit_code, verdict, summary = Exit.PARTIAL, "interrupted", "intact as far as commands ended"
    return StepResult(
        incident=place.id,
        exit_code=exit_code,
        verdict=verdict,
        lines=(
            *(f"broken  {problem}" for problem in problems),
            *(f"interrupted  {text}" for text in interrupted),
            *(f"covered {text}" for text in covered),
            f"{place.id}: {summary}",
        ),
        data={"problems": problems, "interrupted": interrupted, "covered": covered, "deep": deep},
        next_commands=_following(place, run_folder, incidents, deep=deep, is_whole=not interrupted),
    )


def _following(
    place: Incident, run_folder: Path, incidents: Path | None, *, deep: bool, is_whole: bool
) -> tuple[str, ...]:
    if not is_whole:
        return (next_step.command("status", run_folder, incidents, place.id),)
    if deep:
        return ()
    return (next_step.command("verify", run_folder, incidents, place.id, "--deep"),)


def _examine(place: Incident, run_folder: Path, *, deep: bool, head: str) -> tuple[Examined, ...]:
    folder = place.folder
    evidence = folder / layout.EVIDENCE
    try:
        dossier, broken = place.dossier(), audit(place, anchors=_anchors(folder, head))
    except EvidenceError as error:
        record = Examined(covered="record: unreadable", problems=(error.message,))
        return (record, _bag(evidence))
    record = Examined(covered=_covered(dossier), problems=broken)
    written = written_files.read(dossier)
    bag = _bag(evidence)
    if written.is_explained(f"{layout.EVIDENCE}/{MANIFEST}"):
        bag = Examined(covered="evidence: its freeze did not finish", problems=())
    elif dossier.freeze is None and not dossier.files and not evidence.exists():
        ended = f"{place.id}: its freeze ended before it kept anything"
        bag = Examined(covered="evidence: none yet", problems=(), interrupted=(ended,))
    in_place = _artifacts(dossier, run_folder, folder, deep=deep)
    return (record, bag, _written(dossier, written, run_folder, folder), in_place)


def _covered(dossier: Dossier) -> str:
    text = f"record: {len(dossier.journal)} journal rows and every table's chain"
    if dossier.journal:
        text += f", to the head {dossier.journal[-1].digest}"
    return text


def _anchors(folder: Path, head: str) -> dict[str, str]:
    """Heads of the journal that were noted outside of it: by the report, and by whoever asks."""
    anchors = {}
    if head:
        anchors["--head"] = head
    report = folder / "report" / "report.json"
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        stated = json.loads(report.read_bytes())["chain_head"]
        if stated:
            anchors[str(report)] = str(stated)
    return anchors


def _written(
    dossier: Dossier, written: written_files.Written, run_folder: Path, folder: Path
) -> Examined:
    """What commands wrote against what they said of it; nobody else writes there."""
    known = {f"{layout.EVIDENCE}/{name}" for name in (MANIFEST, BAGIT, layout.PARQUET)}
    for artifact in dossier.artifacts:
        pin = layout.pinned(folder, run_folder, run_folder / artifact.path)
        known.add(pin.relative_to(folder).as_posix())
    problems = list(written_files.problems(folder, written))
    for below in (layout.EVIDENCE, "trials", "report"):
        for path in written_files.unknown(folder, written, known, below):
            problems.append(path)
    interrupted = written_files.interrupted(folder, written)
    return Examined(
        covered=f"written: {len(written.digests)} files of evidence, trials and report",
        problems=tuple(problems),
        interrupted=tuple(interrupted),
    )


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
    listed: dict[str, str] = {}
    if not text:
        return listed  # nothing could be copied
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
    paths = _located(artifact, run_folder, folder)
    if not paths:
        yield f"{run_folder / artifact.path}: missing, and not pinned"
    for path in paths:
        if not path.is_dir():
            yield from _at(path, artifact, deep=deep)


def _at(path: Path, artifact: Artifact, *, deep: bool) -> Iterator[str]:
    try:
        stat = path.stat()
        if stat.st_size != artifact.size_bytes:
            yield f"{path}: changed: expected {artifact.size_bytes} bytes, found {stat.st_size}"
        elif deep and artifact.digest:
            seen = _DIGESTS.get(artifact.kind, digests.of_file)(path)
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


def _located(artifact: Artifact, run_folder: Path, folder: Path) -> list[Path]:
    """Where the artifact lies now: at its place, at its hard link, at both if they parted."""
    source = run_folder / artifact.path
    pin = layout.pinned(folder, run_folder, source)
    if source.exists() and pin.exists() and source.samefile(pin):
        return [source]
    return [path for path in (source, pin) if path.exists()]
