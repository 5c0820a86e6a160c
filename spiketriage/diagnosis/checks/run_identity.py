"""Check: a restart keeps the tokenizer, the dataset, the model and the mode of its arithmetic.

Each attempt is held against the generation that it continues, or else against the attempt before
it. It compares digests that were recorded and never reads what they are the digests of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import AttemptIdentity, View
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import Identity

NAME = "run-identity"
TOKENIZER, DATASET = "tokenizer-identity", "dataset-identity"
MODEL, DETERMINISM = "model-identity", "deterministic-mode"
# Somebody may have meant the change, so none of them is any cause's to explain.
EMITS = {
    TOKENIZER: Emission(role=AGAINST_THE_RUN, dates_onset=True),
    DATASET: Emission(role=AGAINST_THE_RUN, dates_onset=True),
    MODEL: Emission(role=AGAINST_THE_RUN, dates_onset=True),
    DETERMINISM: Emission(role=AGAINST_THE_RUN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """One value on both sides of a restart; `keeper` is who held the expected one."""

    step: int | None
    place: str
    keeper: str
    expected: str
    seen: str


def run(view: View) -> tuple[Finding, ...]:
    """A finding for each of the four that was recorded.

    A change of the deterministic mode is context, the others are judged.
    """
    identities = [item.identity for item in view.identities()]
    findings: list[Finding] = []
    if any(identity.tokenizer_digest for identity in identities):
        findings.append(_finding(TOKENIZER, "tokenizer", _tokenizers(view)))
    if any(identity.dataset_digest for identity in identities):
        findings.append(_finding(DATASET, "dataset", _against_earlier(view, _dataset)))
    if any(manifest.model_digest for manifest in view.manifests()):
        findings.append(_finding(MODEL, "model", _models(view)))
    if identities:
        noun, modes = "use of deterministic algorithms", _against_earlier(view, _mode)
        findings.append(_finding(DETERMINISM, noun, modes, judged=False))
    return tuple(findings)


def _tokenizer(identity: Identity) -> str:
    return identity.tokenizer_digest


def _dataset(identity: Identity) -> str:
    return identity.dataset_digest


def _mode(identity: Identity) -> str:
    if identity.deterministic:
        return "on"
    return "off"


def _tokenizers(view: View) -> Iterator[_Comparison]:
    """Against the generation that an attempt continues, then against the attempt before it."""
    for item in view.identities():
        manifest = view.reference(item.attempt)
        if manifest is not None and manifest.tokenizer_digest and item.identity.tokenizer_digest:
            yield _Comparison(
                step=item.first_step,
                place=_place(item),
                keeper=manifest.generation,
                expected=manifest.tokenizer_digest,
                seen=item.identity.tokenizer_digest,
            )
    yield from _against_earlier(view, _tokenizer)


def _against_earlier(view: View, value: Callable[[Identity], str]) -> Iterator[_Comparison]:
    """Each attempt of a rank against the newest earlier one that states the value."""
    newest: dict[int, AttemptIdentity] = {}
    for item in view.identities():
        seen = value(item.identity)
        if not seen:
            continue
        earlier = newest.get(item.rank)
        if earlier is not None:
            yield _Comparison(
                step=item.first_step,
                place=_place(item),
                keeper=f"attempt {earlier.attempt}",
                expected=value(earlier.identity),
                seen=seen,
            )
        newest[item.rank] = item


def _models(view: View) -> Iterator[_Comparison]:
    """Names, shapes and dtypes of the parameters, from each generation to the next."""
    earlier: Manifest | None = None
    for manifest in view.manifests():
        if not manifest.model_digest:
            continue
        if earlier is not None:
            yield _Comparison(
                step=manifest.step,
                place=f"in {manifest.generation}",
                keeper=earlier.generation,
                expected=earlier.model_digest,
                seen=manifest.model_digest,
            )
        earlier = manifest


def _place(item: AttemptIdentity) -> str:
    if item.first_step is None:
        return f"in attempt {item.attempt}, before its first step"
    return f"where attempt {item.attempt} begins at step {item.first_step}"


def _finding(
    name: str, noun: str, comparisons: Iterable[_Comparison], *, judged: bool = True
) -> Finding:
    num_compared = 0
    for comparison in comparisons:
        num_compared += 1
        if comparison.expected != comparison.seen:
            return Finding(
                name=name,
                outcome="differs",
                summary=f"the {noun} changed {comparison.place}: it is not that of "
                f"{comparison.keeper}",
                where=Where(step=comparison.step),
                expected=comparison.expected,
                seen=comparison.seen,
                judged=judged,
            )
    if not num_compared:
        return untestable(name, f"nothing states the {noun} a second time")
    return agrees(name, f"the {noun} is the same in {counted(num_compared, 'comparison')}")
