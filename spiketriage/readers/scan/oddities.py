"""What cannot be, or hardly ever is, in a healthy checkpoint although its numbers are finite.

This module never looks at a byte: it reads the counts of one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spiketriage.nouns.checkpoint import Measurement, TensorFacts, TensorStats
from spiketriage.readers.scan.floats import FLOATS
from spiketriage.readers.scan.kernels import value_of

# Weights of trained language models stay below a hundred; a flipped exponent bit makes 1e10.
ABSURD_PARAMETER = 1e4
# With a scale that fits, hardly a value is the largest that FP8 has; one in a hundred never is.
SATURATED_SHARE = 0.01
# running means of squares, in torch.optim's names
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")


def is_second_moment(name: str) -> bool:
    """Whether a tensor of this name holds running means of squares, which cannot be negative."""
    return name.rpartition(".")[2] in SECOND_MOMENTS


def oddities(tensors: Iterable[TensorFacts], measured: Measurement) -> Iterator[str]:
    """One sentence for each thing in each tensor that no healthy state has."""
    for tensor in tensors:
        stats = measured.stats.get(tensor.name)
        if stats is not None and stats.num_elements:
            for text in _impossible(tensor, stats):
                yield f"{tensor.name}: {text}"


def suspicions(tensors: Iterable[TensorFacts], measured: Measurement) -> Iterator[str]:
    """One sentence for each thing that is rare in a healthy state and common in a damaged one."""
    for tensor in tensors:
        stats = measured.stats.get(tensor.name)
        if stats is not None and stats.num_elements:
            for text in _rare(tensor, stats):
                yield f"{tensor.name}: {text}"


def nonfinite(tensors: Iterable[TensorFacts], measured: Measurement) -> Iterator[str]:
    """One sentence for each tensor of the training state that is not finite.

    A callback's best score so far may well be infinite, so tensors of other roles are left out.
    """
    for tensor in tensors:
        stats = measured.stats.get(tensor.name)
        if tensor.role == "other" or stats is None or not stats.num_nonfinite:
            continue
        signs = f"{stats.num_positive_inf} +Inf, {stats.num_negative_inf} -Inf"
        where = f" in {stats.nonfinite_path}" if stats.nonfinite_path else ""
        yield (
            f"{tensor.name}: {stats.num_nan} NaN, {signs} of {stats.num_elements}, the first at "
            f"{list(stats.first_nonfinite or ())}{where}"
        )


def _impossible(tensor: TensorFacts, stats: TensorStats) -> Iterator[str]:
    if stats.num_negative and is_second_moment(tensor.name):
        yield (
            f"{stats.num_negative} of {stats.num_elements} sums of squares are negative, which "
            "is impossible"
        )
    if tensor.role != "parameter":
        return
    if stats.absmax > ABSURD_PARAMETER:
        yield f"holds {stats.absmax:.3g}, which no trained weight is"
    if 0 < stats.absmax < value_of(stats.dtype, _smallest_normal(stats.dtype)):
        yield f"nothing in it is larger than {stats.absmax:.3g}: all denormal"


def _rare(tensor: TensorFacts, stats: TensorStats) -> Iterator[str]:
    if tensor.role == "parameter" and stats.zero_chunk_path:
        yield (
            f"its chunk in {stats.zero_chunk_path} is all zeros, the others are not: a lost "
            "page or shard, or padding"
        )
    is_matrix = tensor.role == "parameter" and len(tensor.shape) > 1
    if is_matrix and stats.num_zeros == stats.num_elements:
        yield "is all zeros: a lost shard, or not trained yet"
    if stats.num_saturated and stats.num_saturated > SATURATED_SHARE * stats.num_elements:
        yield (
            f"{stats.num_saturated / stats.num_elements:.1%} of it is the largest FP8 value: "
            "saturated"
        )


def _smallest_normal(dtype: str) -> int:
    if dtype in FLOATS:
        return FLOATS[dtype].smallest_normal
    return 0
