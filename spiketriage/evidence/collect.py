"""The process that copies evidence: `python -m spiketriage.evidence.collect`, its job on stdin.

It runs apart so that a read that never returns costs its collector only; it never opens a source
for writing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from spiketriage.durable import FULL
from spiketriage.errors import EvidenceError, NoRoomError, PartialError
from spiketriage.evidence import layout
from spiketriage.evidence.budget import Budget
from spiketriage.evidence.collectors import COLLECTORS, Collector, Item
from spiketriage.evidence.copying import copy
from spiketriage.evidence.measured import kept, to_json
from spiketriage.nouns.incident import Artifact, RunSettings
from spiketriage.nouns.listing import counted
from spiketriage.readers.boundary import led_out
from spiketriage.readers.checkpoints.generations import read_generation, read_generations
from spiketriage.readers.settings import read_settings

# not a copy but a measurement: digest and finiteness of candidate generations
GENERATIONS = "generations"
NUM_CANDIDATES = 2
MAX_LEFT_OUT = 5  # named one by one of each kind; the others are counted
ALIVE_FILES = 1000  # counted between two signs of life


def main() -> None:
    """Run the named collectors in order; every line on stdout is one JSON object."""
    job = json.loads(sys.stdin.read())
    settings = read_settings(Path(job["run"]))
    by_name = {collector.name: collector for collector in COLLECTORS}
    target = Path(job["payload"])
    copies = Copies(settings, target, Budget(layout.incident_of(target), **job["kept"]))
    for name in job["collectors"]:
        tell(begin=name)
        try:
            if name == GENERATIONS:
                measure(settings, job["onset"])
            else:
                copies.collect(by_name[name])
        except EvidenceError as error:
            tell(gap=name, note=error.message)
        except OSError as error:  # a look at a folder, say, that is not ours to look at
            tell(gap=name, note=f"{error.filename}: {error.strerror or error}")
        tell(end=name)


def tell(**line: object) -> None:
    """Write one line for the parent, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Copies:
    """The copies of one run, below `target`: none takes the place of another."""

    def __init__(self, settings: RunSettings, target: Path, budget: Budget) -> None:
        self._settings, self._target, self._budget = settings, target, budget
        self._sources: dict[str, Path] = {}  # of the copies so far, by name
        self._last_left_out = ""
        self._num_left_out = 0

    def collect(self, collector: Collector) -> None:
        """Copy every item of a collector; what there is no room for is told, some by name."""
        self._budget.begin(collector.share)
        self._num_left_out = 0
        for item in collector.items(self._settings):
            self._keep(item)
        num_more = self._num_left_out - MAX_LEFT_OUT
        if num_more > 0:
            tell(
                gap=f"{collector.name}: {counted(num_more, 'more file')}",
                note=f"not copied for the same reasons, the last of them {self._last_left_out}",
            )

    def _keep(self, item: Item) -> None:
        """Copy one item and tell the artifact; what cannot be copied is told as missing."""
        name = layout.copy_name(self._settings, item.kind, item.source)
        assert name is not None, "every collector lists kinds that are copied"
        path = layout.artifact_path(self._settings.run, item.source)
        try:
            _require_own(self._settings, item, self._sources.setdefault(name, item.source))
            artifact, sha256 = copy(
                item,
                self._target / name,
                path,
                patterns=self._settings.redact,
                drafts=self._target.with_name(layout.DRAFTS),
                budget=self._budget,
                alive=lambda source: tell(alive=str(source)),
            )
        except NoRoomError as error:
            self._leave_out(item, path, error.message)
        except EvidenceError as error:
            tell(artifact=asdict(missing(path, item.kind, error.message)))
        except (OSError, PartialError) as error:
            _tell_failure(error, item, path, self._target / name)
        else:
            if item.kind == "telemetry":  # its columns are written later
                self._budget.hold(artifact.size_bytes)
            tell(artifact=asdict(artifact), copy=name, sha256=sha256)

    def _leave_out(self, item: Item, path: str, why: str) -> None:
        self._num_left_out += 1
        if self._num_left_out <= MAX_LEFT_OUT:
            tell(artifact=asdict(missing(path, item.kind, f"not copied: {why}")))
            return
        self._last_left_out = path
        if self._num_left_out % ALIVE_FILES == 0:
            tell(alive=path)


def _tell_failure(error: OSError | PartialError, item: Item, path: str, target: Path) -> None:
    """Tell a copy that failed as missing; where the disk is full, end.

    Raises:
        SystemExit: it is.
    """
    why = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(why, OSError) or why.errno not in FULL:
        tell(artifact=asdict(missing(path, item.kind, f"cannot be copied: {why}")))
        return
    size_bytes = item.source.stat().st_size if item.content is None else 0
    tell(full=str(target), size_bytes=size_bytes)
    raise SystemExit(1) from error


def _require_own(settings: RunSettings, item: Item, first: Path) -> None:
    """Refuse what is not the run's own, and what would replace another copy.

    Raises:
        EvidenceError: the source leads out of the run, or its copy has another's name.
    """
    if first != item.source:
        raise EvidenceError(f"not copied: the copy of {first} has the same name")
    if item.content is None:
        place = led_out(settings, item.source)
        if place is not None:
            raise EvidenceError(f"not copied: leads out of the run, to {place}")


def missing(path: str, kind: str, note: str) -> Artifact:
    """The artifact of something that could not be kept."""
    return Artifact(
        path=path,
        kind=kind,
        size_bytes=0,
        mtime_ns=0,
        digest="",
        expected="",
        kept="missing",
        note=note,
    )


def measure(settings: RunSettings, onset: int | None) -> None:
    """Tell every generation; verify the newest ones older than the onset until two are sound."""
    num_sound = 0
    for generation in reversed(read_generations(settings.checkpoints, verify=False)):
        facts, step = generation, generation.step
        place = led_out(settings, generation.path)
        if place is not None:
            path = layout.artifact_path(settings.run, generation.path)
            tell(gap=path, note=f"not measured: leads out of the run, to {place}")
            continue
        verify = num_sound < NUM_CANDIDATES and (onset is None or step is None or step < onset)
        if verify:
            facts = read_generation(settings.checkpoints, generation.name, verify=True)
            num_sound += facts.complete and not facts.problems and not facts.nonfinite
        tell(generation=to_json(kept(facts)))


if __name__ == "__main__":
    main()
