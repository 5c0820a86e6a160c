"""What `inspect` says of things that are no evidence, and of files made to exhaust a machine.

The second kind is inspected by a process of its own that may have 1.5 GiB of address space and not
a byte more.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, environment

from spiketriage.readers.telemetry.stores.crc32c import masked_of_bytes
from spiketriage.tools import inspect

PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(14))),
        (b"IEND", b""),
    )
)
SCRIPT = """import torch
for step in range(10):
    print(f"step {step} | loss {loss:.4f} | lr {lr}")  # iteration 7/ 1000 | lm loss: 2.5E+00 |
    # slurmstepd: error: *** JOB 7 ON gpu017 CANCELLED AT 2026-10-06T07:08:09 DUE TO TIME LIMIT ***
    # [ 1.0] NVRM: Xid (PCI:0000:19:00): 79, pid=1, name=python, GPU has fallen off the bus.
{'loss': 2.5, 'learning_rate': 0.001}
iter 10: loss 2.5, time 250.00ms, mfu 9.31%
"""
PROSE = {
    "notes.txt": "We saw a spike at step 1200.\nThe loss went to 7.1 and came back.\n",
    "settings.yaml": "step: 10\nloss: mean\nlr: 0.001\n",
    "settings.toml": "[train]\nstep = 10\nlr = 0.001\n",
    "config.json": (
        '{\n  "architectures": ["Llama"],\n  "hidden_size": 64,\n  "initializer_range": 0.02\n}\n'
    ),
    "people.csv": "name,city\nAnn,Rome\nBob,Oslo\n",
    "people.jsonl": '{"name": "Ann"}\n{"name": "Bob"}\n',
    "table": "a b c\n1 2 3\n4 5 6\n",
    "syslog": "Oct  6 07:08:09 gpu017 sshd[1]: Accepted publickey for ann\n",
    "random": "\x01\x02\x03\x80binary",
    "archive.zip": "PK\x03\x04 nothing of torch",
    "page.html": "<html>step: 10 loss: 2.5</html>",
    "train.py": SCRIPT,
    "train.sh": SCRIPT,
    "guide.md": SCRIPT,
}


def assert_unknown(path: Path) -> None:
    result = inspect.run(path)
    assert result.exit_code == 5, result.lines
    assert result.verdict == "unknown"
    assert result.lines[0] == f"{path}: of no known format"
    assert "seen: " in result.lines[1]
    assert "tried: " in result.lines[-1]
    assert "torch-save" in result.lines[-1]


@pytest.mark.parametrize("name", PROSE)
def test_what_is_no_evidence_is_of_no_known_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROSE[name], encoding="utf-8")
    assert_unknown(tmp_path / name)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "pyproject.toml", Path("/bin/ls"), Path(sys.executable)]
)
def test_programs_and_prose_are_of_no_known_format(path: Path) -> None:
    assert_unknown(path.resolve())


def test_pictures_empty_folders_and_folders_of_nothing_are_of_no_known_format(
    tmp_path: Path,
) -> None:
    picture, empty, many = tmp_path / "picture.png", tmp_path / "empty", tmp_path / "many"
    picture.write_bytes(PNG)
    empty.mkdir()
    many.mkdir()
    for number in range(20_000):
        os.close(os.open(many / f"{number}.log", os.O_CREAT | os.O_WRONLY))
    for path in (picture, empty, many):
        assert_unknown(path)


def many_objects(path: Path) -> None:
    """Ten million numbers in a list, two bytes each."""
    path.write_bytes(b"\x80\x02](" + b"K\x01" * 10_000_000 + b"e.")


def many_empty_lists(path: Path) -> None:
    """Ten million lists, a byte each, of which every one is an object of 56 bytes."""
    path.write_bytes(b"\x80\x02](" + b"]" * 10_000_000 + b"e.")


def cyclic(path: Path) -> None:
    """A list in itself, a dict in itself, and a chain a million deep."""
    own: list[object] = [1]
    own.append(own)
    named: dict[str, object] = {"model": own}
    named["again"] = named
    deep = b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b"."
    path.write_bytes(pickle.dumps(named, protocol=2))
    path.with_name("deep.pt").write_bytes(deep)


def memo_bomb(path: Path) -> None:
    """A list of two times the list before it, sixty times over.

    2^60 elements for whoever walks it.
    """
    body = b"".join(
        b"(h" + bytes([at]) + b"h" + bytes([at]) + b"lq" + bytes([at + 1]) + b"0"
        for at in range(60)
    )
    path.write_bytes(b"\x80\x02(lq\x000" + body + b"h\x3c.")


def zip_bomb(path: Path) -> None:
    """A torch.save archive whose pickle is 4 GiB of zeros, packed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/version", "3\n")
        with archive.open("archive/data.pkl", "w", force_zip64=True) as stream:
            block = bytes(1 << 24)
            for _ in range(16):
                stream.write(block)


def one_line(path: Path) -> None:
    """300 MB without a line feed, after a head that looks like a log."""
    with path.open("wb") as stream:
        stream.write(b" iteration       10/    1000 | lm loss: 2.500000E+00 | grad norm: 0.8 |\n")
        stream.write(b"x" * 1000)
        stream.truncate(300_000_000)


def one_text_line(path: Path) -> None:
    """100 MB of words on one line."""
    with path.open("wb") as stream:
        for _ in range(100):
            stream.write(b"loss: 2.5 step 1 " * 58_823 + b" " * 9)


def json_line(path: Path) -> None:
    """A JSON object of 200 MB on one line."""
    with path.open("wb") as stream:
        stream.write(b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 2.0, "text": "')
        for _ in range(200):
            stream.write(b"y" * 1_000_000)
        stream.write(b'"}\n')


def record_of_two_exabytes(path: Path) -> None:
    """A TensorBoard record whose length is 2 EB, with the right checksum of that length."""
    good = next((ROOT / "fixtures" / "telemetry" / "tensorboard").iterdir()).read_bytes()
    length = struct.pack("<Q", 2_000_000_000_000_000_000)
    path.write_bytes(good + length + struct.pack("<I", masked_of_bytes(length)) + b"\0" * 64)


def long_header(path: Path) -> None:
    """A safetensors header of 90 MB: more than a million empty tensors."""
    items = ",".join(
        f'"layer.{at:07d}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
        for at in range(1_350_000)
    )
    header = b"{" + items.encode() + b"}"
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def long_metadata(path: Path) -> None:
    """A safetensors header of 90 MB, most of which is one word of the metadata."""
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps(
        {"__metadata__": {"format": "pt", "note": "x" * 90_000_000}, "weight": tensor}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def header_that_is_missing(path: Path) -> None:
    """A safetensors file that is sparse and says that its header is 90 MB long: 90 MB of zeros."""
    path.write_bytes(struct.pack("<Q", 90_000_000) + b"{")
    os.truncate(path, 90_000_100)


def long_index(path: Path) -> None:
    """An index of a million tensors in ten thousand files, none of which is there."""
    names = ",".join(
        f'"t.{at}":"model-{at % 10_000:05d}-of-10000.safetensors"' for at in range(1_000_000)
    )
    path.mkdir()
    (path / "model.safetensors.index.json").write_text(
        '{"metadata":{},"weight_map":{' + names + "}}"
    )


def deep_json(path: Path) -> None:
    """Half a million brackets, which Python's own parser refuses by recursion."""
    path.write_text('{"log_history":' + "[" * 500_000 + "]" * 500_000 + "}")


def deep_lines(path: Path) -> None:
    """The same on a line of a JSON log."""
    path.write_text(
        '{"step":1,"loss":1.0}\n{"step":2,"x":' + '{"a":' * 200_000 + "1" + "}" * 200_001 + "\n"
    )


def mosaic_index(path: Path) -> None:
    """A MosaicML index that promises 10^18 samples in 100,000 shards."""
    path.mkdir()
    shard = {
        "format": "mds",
        "samples": 10**15,
        "column_names": ["tokens"],
        "column_encodings": ["ndarray"],
    }
    shard |= {
        "column_sizes": [None],
        "raw_data": {"basename": "shard.0.mds", "bytes": 10**15, "hashes": {}},
    }
    shard |= {"zip_data": None, "compression": None, "hashes": [], "size_limit": None, "version": 2}
    one = json.dumps(shard)
    (path / "index.json").write_text(
        '{"version": 2, "shards": [' + ",".join([one] * 100_000) + "]}"
    )


def absurd_index(path: Path) -> None:
    """A Megatron index that says it has 2^60 sequences."""
    path.with_suffix(".bin").write_bytes(bytes(100))
    path.write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1 << 60, 1 << 60) + bytes(100))


def nested_archive(path: Path) -> None:
    """A torch.save archive with a directory of 60,000 names."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": 3}, protocol=2))
        for at in range(60_000):
            archive.writestr(f"archive/data/{at}", b"")
    path.write_bytes(held.getvalue())


EXHAUSTING: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "objects.pt": (many_objects, ()),
    "lists.pt": (many_empty_lists, ()),
    "cyclic.pt": (cyclic, ("deep.pt",)),
    "memo.pt": (memo_bomb, ()),
    "bomb.pt": (zip_bomb, ()),
    "names.pt": (nested_archive, ()),
    "sparse.log": (one_line, ()),
    "words.log": (one_text_line, ()),
    "long.jsonl": (json_line, ()),
    "events.out.tfevents.1.h": (record_of_two_exabytes, ()),
    "header.safetensors": (long_header, ()),
    "metadata.safetensors": (long_metadata, ()),
    "zeros.safetensors": (header_that_is_missing, ()),
    "index": (long_index, ()),
    "trainer_state.json": (deep_json, ()),
    "deep.jsonl": (deep_lines, ()),
    "mds": (mosaic_index, ()),
    "corpus.idx": (absurd_index, ()),
}
LIMIT_BYTES = 3 << 29


@pytest.mark.parametrize("name", EXHAUSTING)
def test_a_file_made_to_exhaust_memory_ends_with_a_sentence(name: str, tmp_path: Path) -> None:
    make, others = EXHAUSTING[name]
    make(tmp_path / name)
    for path in (tmp_path / name, *(tmp_path / other for other in others)):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from spiketriage.cli.main import run; run()",
                "inspect",
                str(path),
            ],
            cwd=tmp_path,
            env=environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in (0, 4, 5), (done.returncode, done.stderr[-2000:])
        assert done.stdout.startswith(str(path)) or done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stdout) < 20_000
