"""The two moments of Adam held against each other: the square of one is bounded by the other.

This module never looks at a byte and never judges an optimizer whose second moment is no mean of
squares.

With m = (1-b1) sum b1^k g_k and v = (1-b2) sum b2^k g_k^2, the Cauchy-Schwarz inequality gives for
every element m^2 <= c v with c = (1-b1)^2 / ((1-b2) (1 - b1^2/b2)), whatever the gradients were, as
long as b1^2 < b2. The bias corrections of Adam (Kingma and Ba 2015, algorithm 1) act on neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts, Measurement, TensorStats

FIRST, SECOND = "exp_avg", "exp_avg_sq"
# Betas between those of any recipe in use where none is stated: c of (0.9, 0.9999) is 526.
BOUND_OF_UNKNOWN_BETAS = 1000.0
# Moments that are stored in BF16 are off by 0.4 %, and betas may be changed on the way.
SLACK = 4.0
# A smaller square is lost in the formats that moments are stored in, FP16 at the worst.
SMALLEST_FIRST = 1e-3


def moment_oddities(facts: CheckpointFacts, measured: Measurement) -> Iterator[str]:
    """One sentence for each first moment that is too large for its second."""
    bound = bound_of(facts.fields)
    for tensor in facts.tensors:
        if tensor.role != "optimizer" or SECOND not in tensor.name:
            continue
        first = measured.stats.get(tensor.name.replace(SECOND, FIRST))
        second = measured.stats.get(tensor.name)
        if first is not None and second is not None and _is_impossible(first, second, bound):
            yield (
                f"{tensor.name}: is at most {second.absmax:.3g}, while the first moment beside it "
                f"reaches {first.absmax:.3g}: its square cannot be more than {bound:.3g} times "
                "that, so the two are not of one history"
            )


def bound_of(fields: Iterable[FieldFacts]) -> float:
    """The largest c of all parameter groups; a generous one where no betas are stated."""
    bounds = []
    for field in fields:
        for first, second in _betas(field):
            if 0 <= first < 1 and first * first < second < 1:
                ratio = first * first / second
                bounds.append((1 - first) ** 2 / ((1 - second) * (1 - ratio)))
    return max(bounds, default=BOUND_OF_UNKNOWN_BETAS)


def _betas(field: FieldFacts) -> Iterator[tuple[float, float]]:
    """The betas of each parameter group that a field holds."""
    if field.name.endswith(".betas"):
        yield _number(field.values, "0"), _number(field.values, "1")
        return
    for key in field.values:
        if key.endswith("betas.0"):
            yield _number(field.values, key), _number(field.values, f"{key[:-1]}1")


def _number(values: Mapping[str, str], key: str) -> float:
    try:
        return float(values[key])
    except (KeyError, ValueError):
        return -1.0  # no beta: it gives no bound


def _is_impossible(first: TensorStats, second: TensorStats, bound: float) -> bool:
    if first.num_nonfinite or second.num_nonfinite or first.absmax < SMALLEST_FIRST:
        return False
    return first.absmax**2 > SLACK * bound * second.absmax
