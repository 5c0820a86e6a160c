"""Reads mutants in a process with limits and says on standard output what came of each.

Started by `mutants.py` with the seeds, a range of numbers and a folder of its own; it never writes
outside that folder, and reports a reader that does.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from spiketriage.errors import SpiketriageError
from spiketriage.foreign_text import printable
from spiketriage.readers.discover import claims_on, kinds
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.tools import inspect
from tests.fuzz.mutations import mutant

CPU_S = 10.0  # a mutant is at most 2 MB
MEMORY_BYTES = 1536 << 20
MAX_SENTENCE = 1500
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
TEMPORARY = os.path.realpath(os.environ["TMPDIR"])
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.startfile", "socket.connect", "pty.spawn")


class OverTimeError(BaseException):
    """A mutant took more CPU time than any may."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A fixture that a reader claims, as a path below this worker's folder."""

    member: str
    path: Path


class Watch:
    """Sees by the interpreter's audit events what is written or run while a reader reads."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        is_open = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        is_change = event in CHANGES and not _is_own(args[0], args[-1])
        if event in RUNS or is_change or (is_open and not _is_own(args[0], -1)):
            self.seen.append(f"{event} {args!r}"[:200])


def _is_own(path: object, folder: object) -> bool:
    """Whether a file is a temporary one of ours, or a pipe to a child of ours.

    `folder` is the descriptor that a relative path is below.
    """
    if isinstance(path, int):
        return True
    below = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else "."
    return os.path.realpath(os.path.join(below, str(path))).startswith((TEMPORARY, "/dev/null"))


MEMBERS = {f"{kind}:{m.NAME}": m for kind, members in kinds().items() for m in members}


def sentences(member: str, path: Path, rng: random.Random) -> Iterator[str]:
    """Read as a command would, and give every sentence that an operator would see."""
    kind, reader = member.partition(":")[0], MEMBERS[member]
    facts = reader.read(path, DEFAULT) if kind == "telemetry" else reader.read(path)  # type: ignore[attr-defined]
    yield from (*facts.problems, *facts.notes)
    if kind == "data":
        yield from _of_documents(reader, path)
    if rng.random() < 0.1:
        seen = look(path)
        assert all(0 < claim.confidence <= 1 for claim in claims_on(seen))
    if rng.random() < 0.05:
        result = inspect.run(path)
        json.dumps(result.data, allow_nan=False)
        yield from map(printable, result.lines)  # as the command shows them


def _of_documents(store: Any, path: Path) -> Iterator[str]:
    asks = (
        lambda: store.count(path),
        lambda: store.document(path, 0),
        lambda: store.stored(path, 1, eos=3),
        lambda: store.documents_of_step(path, 2, 4, 16),
    )
    for ask in asks:
        try:
            ask()
        except SpiketriageError as error:
            yield error.message


def judged(member: str, path: Path, rng: random.Random, watch: Watch) -> tuple[str, str]:
    """What came of a mutant: a word, and a report where it should not have come."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    watch.seen.clear()
    watch.is_on = True
    outcome = "read"
    try:
        told = list(sentences(member, path, rng))
    except SpiketriageError as error:
        outcome, told = "refused", [error.message]
    except OverTimeError:
        return "over limits", traceback.format_exc()
    except MemoryError:
        return "over limits", traceback.format_exc()
    except BaseException:  # noqa: BLE001  # what it is, is the finding
        return "foreign exceptions", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch.is_on = False
    if watch.seen:
        return "acted", "\n".join(watch.seen)
    for sentence in told:
        if sentence != printable(sentence) or len(sentence) > MAX_SENTENCE:
            return "bad sentences", repr(sentence[:MAX_SENTENCE])
    return outcome, ""


def main(folder: Path, spec: Path, seed: str, first: int, num: int) -> None:
    """Read the mutants `first` to `first + num` of that seed."""
    _limit()
    watch = Watch()
    seeds = _prepared(folder, json.loads(spec.read_text()))
    pool = _pool(seeds)
    members = sorted(seeds)
    state = os.open(folder / "state", os.O_RDWR | os.O_CREAT)
    for number in range(first, first + num):
        rng = random.Random(f"{seed}:{number}")
        member = members[number % len(members)]
        chosen = rng.choice(seeds[member])
        files = _files(chosen.path)
        file = files[rng.randrange(len(files))]
        data = file.read_bytes()
        file.write_bytes(mutant(data, rng, pool))
        os.pwrite(state, f"{number:>20} {member} {file}\n".encode().ljust(1024), 0)
        outcome, report = judged(member, chosen.path, rng, watch)
        if report:
            report = f"{file.relative_to(folder)}\n{report}"
        file.write_bytes(data)
        print(json.dumps([number, member, outcome, report]), flush=bool(report))
    sys.stdout.flush()


def _limit() -> None:
    def over(number: int, frame: FrameType | None) -> None:
        raise OverTimeError

    signal.signal(signal.SIGPROF, over)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prepared(folder: Path, spec: dict[str, list[str]]) -> dict[str, list[Seed]]:
    """Copy every seed into the worker's folder, each once for every reader."""
    seeds: dict[str, list[Seed]] = {}
    for at, (member, sources) in enumerate(spec.items()):
        for number, source in enumerate(map(Path, sources)):
            path = folder / f"{at}-{number}" / source.name
            path.parent.mkdir()
            if source.is_dir():
                shutil.copytree(source, path)
            else:
                shutil.copy(source, path)
            seeds.setdefault(member, []).append(Seed(member, path))
    return seeds


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(below for below in path.rglob("*") if below.is_file())


def _pool(seeds: dict[str, list[Seed]]) -> Sequence[bytes]:
    pieces = []
    for own in seeds.values():
        pieces.append(_files(own[0].path)[0].read_bytes()[:65536] or b"\0")
    return pieces


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
