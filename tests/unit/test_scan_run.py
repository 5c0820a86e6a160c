"""One pass over whole checkpoints.

Digests, checksums and counts against torch and the plain libraries.

It damages copies of small real files and looks whether the damage is named.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file

from spiketriage import digests
from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, Extent, Promise, TensorFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.layouts import safetensors_files, torch_save
from spiketriage.readers.scan import plan as planning
from spiketriage.readers.scan import run as running
from spiketriage.readers.scan.oddities import nonfinite, oddities
from spiketriage.readers.scan.run import digest_files, measure


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 4 kB, so that a small file has many."""
    monkeypatch.setattr(planning, "PIECE_BYTES", 4096)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of every kind, of odd sizes, with every special value."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(37, 41, generator=generator)
    special = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-41, -3.5, 2.0])
    return {
        "a.bias": special,
        "b.weight": normal.to(torch.bfloat16),
        "c.weight": -normal.abs(),
        "d.weight": normal.to(torch.float16),
        "e.step": torch.tensor([7]),
        "f.weight": normal.double(),
        "g.exp_avg_sq": normal.square(),
    }


def test_counts_of_a_file_are_those_of_torch(tmp_path: Path, small_pieces: None) -> None:
    tensors = weights()
    save_file(tensors, tmp_path / "model.safetensors")
    measured = measure(safetensors_files.read(tmp_path / "model.safetensors"), is_full=True)
    assert sorted(measured.stats) == [name for name in tensors if name != "e.step"]
    for name, stats in measured.stats.items():
        x = tensors[name].double()
        finite = x[torch.isfinite(x)]
        assert stats.num_elements == x.numel()
        assert stats.num_nan == int(torch.isnan(x).sum())
        assert (stats.num_positive_inf, stats.num_negative_inf) == (
            int((x == math.inf).sum()),
            int((x == -math.inf).sum()),
        )
        assert stats.absmax == float(finite.abs().max())
        assert stats.num_zeros == int((x == 0).sum())
        assert stats.num_negative == (int((x < 0).sum()) if name.endswith("exp_avg_sq") else None)
        assert stats.l2 == pytest.approx(float(x.norm()), rel=1e-5, nan_ok=True)
    assert measured.stats["a.bias"].first_nonfinite == (2,)
    (file,) = measured.files
    data = (tmp_path / "model.safetensors").read_bytes()
    pieces = [
        xxhash.xxh3_128_digest(data[start : start + 4096]) for start in range(0, len(data), 4096)
    ]
    assert file.digest == xxhash.xxh3_128_hexdigest(b"".join(pieces))
    assert [bytes.fromhex(one) for one in file.pieces] == pieces


def test_a_file_of_one_piece_has_the_digest_that_any_xxhsum_prints(tmp_path: Path) -> None:
    for name, data in (("a", b"x" * 5000), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
    found = digest_files([tmp_path / "a", tmp_path / "empty", tmp_path / "gone"])
    assert [one.digest for one in found] == [
        xxhash.xxh3_128_hexdigest(b"x" * 5000),
        xxhash.xxh3_128_hexdigest(b""),
        "",
    ]
    assert found[0].digest == digests.of_file(tmp_path / "a")


def torch_file(path: Path) -> CheckpointFacts:
    torch.save({"model": weights(), "global_step": 7}, path)
    return torch_save.read(path)


def test_every_flipped_bit_of_a_tensor_is_found_and_named_where_the_format_has_checksums(
    tmp_path: Path,
) -> None:
    facts = torch_file(tmp_path / "x.pt")
    assert measure(facts, is_full=False).damage == ()
    good = (tmp_path / "x.pt").read_bytes()
    tensors = [tensor for tensor in facts.tensors if tensor.chunks]
    assert len(tensors) == 7
    for tensor in tensors:
        (chunk,) = tensor.chunks
        data = bytearray(good)
        data[(chunk.start + chunk.end) // 2] ^= 0x10
        (tmp_path / "x.pt").write_bytes(data)
        assert (
            torch.load(tmp_path / "x.pt", weights_only=True)["global_step"] == 7
        )  # torch does not notice
        (damage,) = measure(torch_save.read(tmp_path / "x.pt"), is_full=False).damage
        assert damage.start <= chunk.start < chunk.end <= damage.end
        assert damage.expected.startswith("CRC-32 ")


def test_damage_to_a_chunk_names_tensor_chunk_and_rank_file(
    tmp_path: Path, small_pieces: None
) -> None:
    source = Path(__file__).parents[2] / "fixtures" / "dcp" / "plain" / "step_3"
    folder = tmp_path / "step_3"
    shutil.copytree(source, folder)
    facts = dcp.read(folder)
    clean = measure(facts, is_full=True)
    assert clean.damage == clean.problems == ()
    tensor = next(one for one in facts.tensors if len(one.chunks) > 1)
    chunk = tensor.chunks[1]
    path = folder / chunk.path
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(data[chunk.start : chunk.end])) as archive:
        elements = archive.read(
            next(name for name in archive.namelist() if name.endswith("/data/0"))
        )
    at = data.index(elements, chunk.start, chunk.end)
    data[at + len(elements) // 2] ^= 1
    path.write_bytes(data)
    (damage,) = measure(dcp.read(folder), is_full=True).damage
    assert damage.path == chunk.path
    assert damage.name == f"tensor {tensor.name}, chunk at {list(chunk.offset)}"
    assert (damage.start, damage.end) == (at, at + len(elements))


def facts_of(path: Path, **more: object) -> CheckpointFacts:
    size = path.stat().st_size
    file = StoredFile(path=path.name, size_bytes=size)
    return CheckpointFacts(
        layout="x",
        name="x",
        path=path.parent,
        stated_steps=(),
        complete=True,
        world_size=1,
        files=(file,),
        **more,
    )


def test_a_promise_of_another_tool_is_kept_or_named(tmp_path: Path, small_pieces: None) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * 64)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    kept = Promise(path="shard", algorithm="sha256", digest=right.upper())
    assert measure(facts_of(path, promises=(kept,)), is_full=False).damage == ()
    broken = Promise(path="shard", algorithm="sha256", digest="0" * 64)
    (damage,) = measure(facts_of(path, promises=(broken,)), is_full=False).damage
    assert (damage.name, damage.seen) == ("the whole file", right)


def test_tensors_that_share_bytes_are_both_counted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.array([1, 2, math.nan, 4], dtype="<f4").tobytes())

    def tensor(name: str, start: int, end: int) -> TensorFacts:
        shape = ((end - start) // 4,)
        chunk = Chunk(path="data", start=start, end=end, offset=(0,), shape=shape)
        return TensorFacts(name=name, dtype="F32", shape=shape, role="parameter", chunks=(chunk,))

    facts = facts_of(
        path, tensors=(tensor("whole", 0, 16), tensor("tail", 8, 16), tensor("head", 0, 8))
    )
    stats = measure(facts, is_full=False).stats
    assert {name: one.num_nan for name, one in stats.items()} == {"whole": 1, "tail": 1, "head": 0}
    assert (stats["whole"].first_nonfinite, stats["tail"].first_nonfinite) == ((2,), (0,))


def test_what_cannot_be_in_a_healthy_state_is_told(tmp_path: Path) -> None:
    tensors = {
        "lost.weight": torch.zeros(4, 4),
        "flipped.weight": torch.tensor([[0.1, 3e38]]),
        "tiny.weight": torch.full((2, 2), 1e-41),
        "sound.weight": torch.ones(3, 3),
        "w.exp_avg_sq": torch.tensor([0.5, -0.25]),
        "bad.weight": torch.tensor([[1.0, math.inf]]),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    facts = safetensors_files.read(tmp_path / "model.safetensors")
    measured = measure(facts, is_full=True)
    told = sorted(oddities(facts.tensors, measured))
    assert [text.partition(":")[0] for text in told] == [
        "flipped.weight",
        "tiny.weight",
        "w.exp_avg_sq",
    ]
    assert list(nonfinite(facts.tensors, measured)) == [
        "bad.weight: 0 NaN, 1 +Inf, 0 -Inf of 2, the first at [0, 1]"
    ]


class Remote(Executor):
    """An executor that carries jobs and results as bytes, as a cluster does."""

    def submit(self, function, /, *arguments, **named):
        future: Future = Future()
        function, arguments, named = pickle.loads(pickle.dumps((function, arguments, named)))
        future.set_result(pickle.loads(pickle.dumps(function(*arguments, **named))))
        return future


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor, Remote])
def test_any_executor_gives_the_same_answer(
    tmp_path: Path, small_pieces: None, kind: type[Executor]
) -> None:
    facts = torch_file(tmp_path / "x.pt")
    alone = measure(facts, is_full=True)
    with kind() if kind is Remote else kind(max_workers=2) as executor:
        assert repr(measure(facts, is_full=True, executor=executor)) == repr(alone)


def test_an_extent_beyond_a_file_that_shrank_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    extent = Extent(path="data", start=0, end=99, crc32=1, name="x")
    assert measure(facts_of(path, extents=(extent,)), is_full=False).damage == ()
    path.unlink()
    path.mkdir()
    assert running.measure(facts_of_folder(tmp_path), is_full=False).problems


def facts_of_folder(folder: Path) -> CheckpointFacts:
    file = StoredFile(path="data", size_bytes=3)
    return CheckpointFacts(
        layout="x",
        name="x",
        path=folder,
        stated_steps=(),
        complete=True,
        world_size=1,
        files=(file,),
    )


def test_the_scan_needs_no_torch() -> None:
    code = (
        "import sys, spiketriage.readers.scan.run; sys.exit('torch' in sys.modules or "
        "'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
