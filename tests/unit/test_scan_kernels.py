"""Counts over elements against float64 references.

Numpy's own floats, ml conventions by hand, every special value.

It reads no file but those it writes.
"""

from __future__ import annotations

import math
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.readers.scan.crc import combine
from spiketriage.readers.scan.kernels import Tally, is_scannable, tally, value_of
from spiketriage.readers.scan.piece import Piece, Span, Vouched, scan_piece

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    448.0,
    -448.0,
    1e-7,
    -1e-7,
    6e-8,
    math.nan,
    math.inf,
    -math.inf,
    0.015625,
)


def values(data: bytes, dtype: str) -> np.ndarray:
    """The elements as float64, converted by torch."""
    return torch.frombuffer(bytearray(data), dtype=TORCH[dtype]).to(torch.float64).numpy()


def expected(data: bytes, dtype: str) -> dict[str, object]:
    """Every count, computed on float64."""
    x = values(data, dtype)
    finite = x[np.isfinite(x)]
    nonfinite = np.flatnonzero(~np.isfinite(x))
    return {
        "num_elements": x.size,
        "num_nan": int(np.isnan(x).sum()),
        "num_positive_inf": int(np.isposinf(x).sum()),
        "num_negative_inf": int(np.isneginf(x).sum()),
        "first": int(nonfinite[0]) if nonfinite.size else None,
        "absmax": float(np.abs(finite).max()) if finite.size else 0.0,
        "num_zeros": int((x == 0).sum()),
        "num_negative": int((x[~np.isnan(x)] < 0).sum()),
    }


def counted(found: Tally, dtype: str) -> dict[str, object]:
    shown = {
        name: getattr(found, name)
        for name in ("num_elements", "num_nan", "num_positive_inf", "num_negative_inf")
    }
    return shown | {
        "first": found.first,
        "absmax": value_of(dtype, found.largest_bits),
        "num_zeros": found.num_zeros,
        "num_negative": found.num_negative,
    }


@pytest.mark.parametrize("dtype", TORCH)
@given(data=st.binary(min_size=8, max_size=400))
@settings(max_examples=60, deadline=None)
def test_any_bit_patterns_are_counted_as_float64_counts_them(dtype: str, data: bytes) -> None:
    data = data[: len(data) // 8 * 8]
    found = tally(memoryview(data), dtype, first_element=0, is_full=True)
    assert counted(found, dtype) == expected(data, dtype)
    with np.errstate(all="ignore"):
        squares = float(np.square(values(data, dtype)).sum())
    assert found.squares == pytest.approx(squares, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("sign", [1, -1])
def test_special_values_and_tensors_of_one_sign(dtype: str, sign: int) -> None:
    for chosen in (
        SPECIAL,
        SPECIAL[2:3] * 9,
        (sign * 2.0,) * 70_000,
        (0.0,) * 8,
        (-0.0,) * 8,
        (sign * 1e-7,) * 8,
    ):
        data = torch.tensor(chosen, dtype=torch.float64).to(TORCH[dtype])
        raw = data.view(torch.uint8).numpy().tobytes()
        found = tally(memoryview(raw), dtype, first_element=0, is_full=True)
        assert counted(found, dtype) == expected(raw, dtype)


@pytest.mark.parametrize(
    ("dtype", "largest", "word"), [("F8_E4M3", 448.0, 0x7E), ("F8_E5M2", 57344.0, 0x7B)]
)
def test_saturated_fp8_values_are_counted(dtype: str, largest: float, word: int) -> None:
    data = bytes([word, word | 0x80, 0x10, word])
    assert values(data, dtype).tolist()[:2] == [largest, -largest]
    assert tally(memoryview(data), dtype, first_element=0, is_full=True).num_saturated == 3
    assert tally(memoryview(bytes([0x10])), dtype, first_element=0, is_full=True).num_saturated == 0


def test_an_exponent_only_format_has_one_nonfinite_value() -> None:
    found = tally(
        memoryview(bytes([127, 255, 130, 255])), "F8_E8M0", first_element=10, is_full=False
    )
    assert (found.num_nan, found.first, value_of("F8_E8M0", found.largest_bits)) == (2, 11, 8.0)


@pytest.mark.parametrize("scale", [1e-30, 1e30, 3e38])
def test_the_norm_neither_overflows_nor_vanishes_in_float32(scale: float) -> None:
    x = (np.linspace(-1, 1, 100_001) * scale).astype(np.float32)
    found = tally(memoryview(x).cast("B"), "F32", first_element=0, is_full=True)
    assert math.sqrt(found.squares) == pytest.approx(
        float(np.linalg.norm(x.astype(np.float64))), rel=1e-6
    )
    assert found.num_nan == found.num_positive_inf == 0


def test_a_signalling_nan_is_a_nan_like_any_other() -> None:
    for dtype, data in (
        ("BF16", bytes([0x80, 0x7F, 0x81, 0x7F, 0x01, 0x7F])),
        ("F32", bytes([1, 0, 0x80, 0x7F])),
    ):
        assert math.isnan(tally(memoryview(data), dtype, first_element=0, is_full=True).squares)


def test_integers_are_not_scanned() -> None:
    assert [dtype for dtype in ("I64", "U8", "BOOL", "I32") if is_scannable(dtype)] == []


@given(st.binary(max_size=300), st.integers(0, 300))
def test_crcs_of_two_parts_make_that_of_the_whole(data: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    assert combine(zlib.crc32(data[:cut]), zlib.crc32(data[cut:]), len(data) - cut) == zlib.crc32(
        data
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    head=st.integers(0, 9),
    num_elements=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_pieces_cut_anywhere_count_what_the_whole_counts(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    head: int,
    num_elements: int,
    cuts: list[int],
) -> None:
    x = np.random.default_rng(seed).integers(0, 2**32, num_elements, dtype=np.uint32)
    path = tmp_path_factory.getbasetemp() / "cut.bin"
    data = bytes(range(head)) + x.tobytes() + b"tail"
    path.write_bytes(data)
    end = head + 4 * num_elements
    span, range_ = (
        Span(key=0, start=head, end=end, dtype="F32"),
        Vouched(key=0, start=head, end=end),
    )
    whole = scan_piece(
        Piece(
            path=str(path), start=0, end=len(data), spans=(span,), vouched=(range_,), is_full=True
        )
    )
    assert whole.digest == xxhash.xxh3_128_digest(data)
    assert whole.crcs[0].crc32 == zlib.crc32(data[head:end])
    borders = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    merged, crc = Tally(), 0
    for start, stop in pairwise(borders):
        piece = Piece(
            path=str(path), start=start, end=stop, spans=(span,), vouched=(range_,), is_full=True
        )
        facts = scan_piece(piece)
        assert facts.problem == ""
        merged.add(facts.counted[0].tally)
        crc = combine(crc, facts.crcs[0].crc32, facts.crcs[0].num_bytes)
    assert crc == zlib.crc32(data[head:end])
    alone = whole.counted[0].tally
    assert merged.squares == pytest.approx(alone.squares, rel=1e-6, nan_ok=True)
    merged.squares = alone.squares = 0.0
    assert merged == alone


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    missing = scan_piece(Piece(path=str(tmp_path / "gone"), start=0, end=5))
    assert missing.problem == f"{tmp_path / 'gone'}: cannot be read: No such file or directory"
    (tmp_path / "short").write_bytes(b"abc")
    short = scan_piece(Piece(path=str(tmp_path / "short"), start=0, end=5))
    assert "expected at least 5 bytes, found 3" in short.problem
