"""One checkpoint of a run against the next, by the counts of one pass over each.

This module never reads a byte, and never compares checkpoints of different folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spiketriage.nouns.checkpoint import CheckpointFacts, Measurement, TensorFacts, TensorStats
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.scan.moments import FIRST, SECOND

# Weight decay and clipping hold the largest weight of a trained model; a factor of ten between two
# checkpoints is a divergence or a flipped exponent.
GROWTH = 10.0
SMALLEST_LARGEST_WEIGHT = 0.1  # below it a model has just been initialised, or is an adapter
FULL_PRECISION = ("F32", "F64")  # an update below the last place of a narrower format is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A checkpoint with the counts of its tensors."""

    facts: CheckpointFacts
    measurement: Measurement

    @property
    def parameters(self) -> Mapping[str, TensorFacts]:
        """The tensors that are trained, by name."""
        return {tensor.name: tensor for tensor in self.facts.tensors if tensor.role == "parameter"}

    def stats(self, name: str) -> TensorStats | None:
        """The counts of one tensor."""
        return self.measurement.stats.get(name)


def differences(earlier: Measured, later: Measured) -> Iterator[str]:
    """One sentence for each thing that cannot come of training from `earlier` to `later`."""
    yield from _shapes(earlier, later)
    yield from _growth(earlier, later)
    if earlier.facts.step != later.facts.step:
        yield from _unmoved(earlier, later)


def _shapes(earlier: Measured, later: Measured) -> Iterator[str]:
    parameters = later.parameters
    for name, tensor in earlier.parameters.items():
        if name in parameters and parameters[name].shape != tensor.shape:
            shape = list(parameters[name].shape)
            yield (
                f"{name}: has the shape {shape}, and {list(tensor.shape)} in "
                f"{earlier.facts.path.name}"
            )


def _growth(earlier: Measured, later: Measured) -> Iterator[str]:
    before, after = _largest_weight(earlier), _largest_weight(later)
    if before is None or after is None:
        return
    if before[0] >= SMALLEST_LARGEST_WEIGHT and after[0] > GROWTH * before[0]:
        yield (
            f"{after[1]}: holds {after[0]:.3g}, {after[0] / before[0]:.0f} times the largest "
            f"weight of {earlier.facts.path.name} ({before[0]:.3g} in {before[1]})"
        )


def _largest_weight(measured: Measured) -> tuple[float, str] | None:
    largest = None
    for name in measured.parameters:
        stats = measured.stats(name)
        if stats is not None and (largest is None or stats.absmax > largest[0]):
            largest = (stats.absmax, name)
    return largest


def _unmoved(earlier: Measured, later: Measured) -> Iterator[str]:
    """Trained tensors that stand still although the optimizer saw a gradient for them."""
    seen = _with_gradient(earlier, later)
    still, num_moved = [], 0
    for name, tensor in later.parameters.items():
        before, after = earlier.stats(name), later.stats(name)
        if (
            before is None
            or after is None
            or before.l2 is None
            or tensor.dtype not in (FULL_PRECISION)
        ):
            continue
        if (before.l2, before.absmax, before.num_zeros) != (
            after.l2,
            after.absmax,
            after.num_zeros,
        ):
            num_moved += 1
        elif name in seen:
            still.append(name)
    # Where nothing moved, the learning rate was zero or a save was copied, which steps tell.
    if still and num_moved:
        yield (
            f"{still[0]}: has not moved since {earlier.facts.path.name} although its gradient is "
            f"not zero ({len(still)} such: {some(still)}; {num_moved} others moved)"
        )


def _counts(stats: TensorStats) -> tuple[float | None, float, int | None]:
    return stats.l2, stats.absmax, stats.num_zeros


def _with_gradient(earlier: Measured, later: Measured) -> set[str]:
    """The parameters whose first moment the optimizer changed and did not leave at zero.

    A parameter that was frozen on the way keeps the moments that it had.
    """
    names = set()
    for tensor in later.facts.tensors:
        if tensor.role != "optimizer" or FIRST not in tensor.name or SECOND in tensor.name:
            continue
        before, after = earlier.stats(tensor.name), later.stats(tensor.name)
        if before is not None and after is not None and after.absmax and before.l2 != after.l2:
            names.add(tensor.parameter)
    return names
