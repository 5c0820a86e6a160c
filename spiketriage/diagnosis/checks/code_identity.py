"""Check: each attempt runs the code and the config that its generation was written with.

A change of code is context, every healthy run has some; a change of config is judged. It never
reads code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, TESTS_MENTIONED, Emission
from spiketriage.diagnosis.view import AttemptIdentity, View
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.telemetry import Identity

NAME = "code-identity"
CONFIG = "config-identity"
EMITS = {
    NAME: Emission(role=TESTS_MENTIONED),
    CONFIG: Emission(role=TESTS_CAUSES, dates_onset=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    noun: str
    judged: bool
    of_identity: Callable[[Identity], str]
    of_manifest: Callable[[Manifest], str]


CODE_PART = _Part(
    name=NAME,
    noun="code",
    judged=False,
    of_identity=lambda identity: identity.code_digest,
    of_manifest=lambda manifest: manifest.code_digest,
)
CONFIG_PART = _Part(
    name=CONFIG,
    noun="config",
    judged=True,
    of_identity=lambda identity: identity.config_digest,
    of_manifest=lambda manifest: manifest.config_digest,
)


def run(view: View) -> tuple[Finding, ...]:
    """Two findings: `code-identity` (context) and `config-identity` (judged)."""
    return tuple(_compare(view, part) for part in (CODE_PART, CONFIG_PART))


def _compare(view: View, part: _Part) -> Finding:
    num_compared = 0
    for item in view.identities():
        manifest = view.reference(item.attempt)
        if (
            manifest is None
            or not part.of_manifest(manifest)
            or not part.of_identity(item.identity)
        ):
            continue
        num_compared += 1
        if part.of_identity(item.identity) != part.of_manifest(manifest):
            return _differs(part, item, manifest)
    if not num_compared:
        return untestable(
            part.name, f"no manifest states the digest of its {part.noun}", judged=part.judged
        )
    return agrees(
        part.name,
        f"every attempt runs the {part.noun} of the generation it continues",
        judged=part.judged,
    )


def _differs(part: _Part, item: AttemptIdentity, manifest: Manifest) -> Finding:
    if part is CODE_PART:
        paths = f" ({manifest.code_path} → {item.identity.code_path})"
    else:
        paths = ""
    if part.judged:
        context = ""
    else:
        context = "; by itself this is context, not a fault"
    if item.first_step is not None:
        begin = f"at step {item.first_step}"
    else:
        begin = "before its first step"
    return Finding(
        name=part.name,
        outcome="differs",
        summary=f"the {part.noun} changed where attempt {item.attempt} begins {begin}: it is not "
        "that of "
        f"{manifest.generation}{paths}{context}",
        where=Where(
            step=item.first_step,
            rank=None,
            path=item.identity.code_path if part is CODE_PART else None,
        ),
        expected=part.of_manifest(manifest),
        seen=part.of_identity(item.identity),
        judged=part.judged,
    )
