"""One pass over a file: every byte to every sink, to where the file ended when it was opened."""

from __future__ import annotations

from pathlib import Path

import xxhash

from spiketriage import digests


def test_a_file_that_grows_with_every_read_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a line\n" * 100)
    taken: list[bytes] = []

    def grow(chunk: memoryview) -> None:
        taken.append(bytes(chunk))
        assert len(taken) < 10
        with path.open("ab") as stream:
            stream.write(b"another\n" * 1000)

    assert digests.read_pass(path, (grow,)) == 700
    assert b"".join(taken) == b"a line\n" * 100


def test_a_file_of_many_buffers_reaches_every_sink(tmp_path: Path) -> None:
    data = bytes(range(256)) * (digests.BUFFER_BYTES // 100)
    (tmp_path / "data").write_bytes(data)
    first, second = xxhash.xxh3_128(), xxhash.xxh3_128()
    assert digests.read_pass(tmp_path / "data", (first.update, second.update)) == len(data)
    assert first.hexdigest() == second.hexdigest() == xxhash.xxh3_128(data).hexdigest()
