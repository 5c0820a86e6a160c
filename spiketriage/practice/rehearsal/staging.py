"""The stage of one rehearsal: what a fault may see and change before, at, and after the restart.

A fault acts through this page alone; nothing that it says here is written into the run folder under
its name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spiketriage.digests import of_bytes
from spiketriage.errors import UsageError
from spiketriage.nouns.data import Document
from spiketriage.nouns.file import StoredFile
from spiketriage.practice.rehearsal.corpus import Corpus, PlannedDocument
from spiketriage.practice.rehearsal.trainer.config import Config
from spiketriage.practice.rehearsal.trainer.data import Sampler
from spiketriage.wire import data_index

NUM_RANKS = 2
NUM_STEPS = 260
NUM_DOCUMENTS = 5600
NUM_SHARDS = 8
RESTARTS = (160, 180, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement in the code that is deployed at the restart.

    `old` must occur exactly once.
    """

    file: str
    old: str
    new: str


@dataclass(slots=True)
class Staging:
    """One rehearsal before it runs.

    `restart_step` is the generation from which the run restarts once; `crash_step` the step in
    which it died; `fault_step` and `rank` are where a one-off fault belongs. All follow from the
    seed.
    """

    seed: int
    config: Config
    chooser: random.Random
    restart_step: int
    crash_step: int
    fault_step: int
    rank: int
    corpus: Corpus
    documents: list[PlannedDocument]
    names: list[str]
    sampler: Sampler
    edits: list[Edit] = field(default_factory=list)
    hook_arguments: dict[str, Any] | None = None
    rotten: dict[int, bytes] = field(default_factory=dict)

    def documents_at(self, step: int, rank: int | None = None) -> list[int]:
        """Numbers (places in `documents`) of what is consumed at `step`, by one rank or by all."""
        self.sampler.cursor = {"step": 0, "position": 0}
        batches = self.sampler.draw(step)
        if rank is not None:
            batches = [batches[rank]]
        place = {name: number for number, name in enumerate(self.names)}
        numbers = []
        for batch in batches:
            for rows in batch["micros"]:
                for row in rows:
                    numbers += [place[name] for name in row]
        return numbers

    def replace(self, number: int, data: bytes, source: str | None = None) -> None:
        """Give document `number` other bytes of the same length, before anything is written."""
        document = self.documents[number]
        if len(data) != len(document.data):
            raise UsageError(
                f"document {number}: expected {len(document.data)} bytes, got {len(data)}"
            )
        self.documents[number] = PlannedDocument(source=source or document.source, data=data)

    def rot(self, number: int, data: bytes) -> None:
        """Change document `number` on disk in the pause before the restart; the index stays."""
        self.rotten[number] = data

    def edit_code(self, file: str, old: str, new: str) -> None:
        """Change the code that is deployed at the restart."""
        self.edits.append(Edit(file=file, old=old, new=new))

    def hook(self, **arguments: Any) -> None:
        """Let the fault's `before_load` and `before_step` act in the second attempt's processes."""
        self.hook_arguments = arguments


def prepare(seed: int) -> Staging:
    """The stage of `seed`, without a fault."""
    chooser = random.Random(f"{seed}/stage")
    config = Config(seed=seed, num_steps=NUM_STEPS)
    corpus = Corpus(seed)
    documents = corpus.mix(NUM_DOCUMENTS)
    # The name says nothing about the order in which a document is consumed: the sampler shuffles
    # the names.
    names = [f"d{number:05d}" for number in range(NUM_DOCUMENTS)]
    order = Sampler(config, dict.fromkeys(names, 0), NUM_RANKS).order
    restart_step = chooser.choice(RESTARTS)
    lengths = {name: len(document.data) for name, document in zip(order, documents, strict=True)}
    return Staging(
        seed=seed,
        config=config,
        chooser=chooser,
        restart_step=restart_step,
        crash_step=restart_step + chooser.randint(2, 6),
        fault_step=restart_step + chooser.randint(9, 34),
        rank=chooser.randrange(NUM_RANKS),
        corpus=corpus,
        documents=documents,
        names=order,
        sampler=Sampler(config, lengths, NUM_RANKS),
    )


def write_data(stage: Staging, folder: Path) -> None:
    """Shards and their index, as they are before anything rots."""
    folder.mkdir(parents=True)
    by_name = dict(zip(stage.names, stage.documents, strict=True))
    shards, rows = [], []
    for number, part in enumerate(_split(sorted(by_name))):
        shard = f"shard-{number:02d}.bin"
        offset_bytes, data = 0, b""
        for name in part:
            document = by_name[name]
            rows.append(_row(name, shard, offset_bytes, document))
            offset_bytes += len(document.data)
            data += document.data
        (folder / shard).write_bytes(data)
        shards.append(StoredFile(path=shard, size_bytes=len(data), digest=of_bytes(data)))
    (folder / "index.json").write_text(
        json.dumps(data_index.to_json(shards, rows)), encoding="utf-8"
    )


def let_rot(stage: Staging, folder: Path) -> None:
    """Overwrite rotten documents where they lie; the index keeps saying what they were."""
    _, documents = data_index.from_json(
        json.loads((folder / "index.json").read_text(encoding="utf-8"))
    )
    for number, data in stage.rotten.items():
        document = documents[stage.names[number]]
        with (folder / document.shard).open("r+b") as shard:
            shard.seek(document.offset_bytes)
            shard.write(data)


def apply_edits(edits: list[Edit], code: Path) -> None:
    """Apply code changes to a deployed release.

    Raises:
        UsageError: an edit's anchor is not found exactly once.
    """
    for edit in edits:
        path = code / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise UsageError(
                f"{edit.file}: {text.count(edit.old)} places match the edit {edit.old!r}, "
                "expected 1"
            )
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def harmless_edit(chooser: random.Random) -> Edit:
    """A change of code that changes no result: every run's second release carries one."""
    return chooser.choice(HARMLESS)


HARMLESS: tuple[Edit, ...] = (
    Edit(
        file="main.py",
        old='print(f"rank {rank}: training from',
        new='print(f"[rank {rank}] training from',
    ),
    Edit(
        file="schedule.py",
        old="import math\n",
        new="import math\n\n# Counted from 1, as the logs do.\n",
    ),
    Edit(
        file="main.py", old='print(f"rank {rank}: done at', new='print(f"rank {rank}: finished at'
    ),
    Edit(
        file="data.py",
        old="        names = {name for rows",
        new="        # Each document is read once.\n        names = {name for rows",
    ),
)


def _split(names: list[str]) -> list[list[str]]:
    size = -(-len(names) // NUM_SHARDS)
    return [names[start : start + size] for start in range(0, len(names), size)]


def _row(name: str, shard: str, offset_bytes: int, document: PlannedDocument) -> Document:
    return Document(
        id=name,
        shard=shard,
        offset_bytes=offset_bytes,
        length_bytes=len(document.data),
        source=document.source,
        digest=of_bytes(document.data),
    )


def settings_text(run_id: str, release: str) -> str:
    """The run's `spiketriage.toml`."""
    return (
        "schema = 1\n\n"
        f'[run]\nid = "{run_id}"\n\n'
        f'[trainer]\nharness = "trainer.trainer:factory"\npython_path = ["code/{release}"]\n\n'
        f'[launch]\nkind = "torchrun"\nnproc_per_node = {NUM_RANKS}\n'
    )


def config_text(config: Config) -> str:
    """The run's `config.json`."""
    settings: Mapping[str, Any] = config.hparams()
    return json.dumps(settings, indent=1) + "\n"
