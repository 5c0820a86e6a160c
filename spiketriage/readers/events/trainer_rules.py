"""What trainers, PyTorch, CUDA and launchers print when they give up, a row a sentence.

This module never reads a line: `trainer_lines` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spiketriage.nouns.telemetry import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A sentence that reports trouble: a plain part of it, and what the whole must match."""

    needle: str
    pattern: re.Pattern[str]
    kind: str
    severity: Severity = "fatal"


def _rule(needle: str, kind: str, pattern: str = "", severity: Severity = "fatal") -> Rule:
    compiled = re.compile(pattern or re.escape(needle), re.I)
    return Rule(needle=needle, pattern=compiled, kind=kind, severity=severity)


NONFINITE = r"(?:nan|inf|infinity|non-?finite)\b"
# The first that matches a line wins; needles are in lower case.
RULES = (
    # Megatron-LM: validate_loss, check_for_nan_in_grad, the rerun state machine.
    _rule("in local forward loss", "nan-assertion", rf"found {NONFINITE} in local forward loss"),
    _rule("in local grad", "nan-assertion", rf"found {NONFINITE} in local grad"),
    _rule("unexpected result", "nan-assertion", rf"unexpected result {NONFINITE}"),
    # DeepSpeed and GPT-NeoX, then fairseq.
    _rule("cannot decrease scale anymore", "loss-scale-at-minimum"),
    _rule("minimum loss scale reached", "loss-scale-at-minimum"),
    _rule("in a row due to overflow", "overflow-limit"),
    # torchvision references and timm, Lightning, PyTorch's anomaly mode.
    _rule("stopping training", "nan-loss", rf"\bloss is {NONFINITE}.{{0,20}}stopping training"),
    _rule("nan and/or inf values in", "nan-loss"),
    _rule("training_step` is", "nan-loss", rf"loss returned in `training_step` is {NONFINITE}"),
    _rule("returned nan values in its", "nan-loss"),
    _rule("gradients are nan/inf", "nan-loss"),
    _rule("for gradients from", "nan-loss", rf"total norm .{{0,80}} is {NONFINITE}"),
    # PyTorch, CUDA, ROCm.
    _rule("out of memory", "out-of-memory", r"(?:CUDA|HIP|XPU)\b.{0,20}out of memory"),
    _rule("outofmemoryerror", "out-of-memory"),
    _rule("resource_exhausted", "out-of-memory", r"RESOURCE_EXHAUSTED: .{0,40}out of memory"),
    _rule("cuda error:", "cuda-error"),
    _rule("hip error:", "cuda-error"),
    _rule("cublas_status_", "cuda-error", r"CUBLAS_STATUS_\w+ when calling"),
    _rule("block: [", "device-assertion", r"block: \[.{1,40} thread: \[.{1,40} Assertion"),
    # torchelastic, shells, the interpreter.
    _rule("failed (exitcode:", "worker-exit", r"failed \(exitcode: -?\d{1,9}\)"),
    _rule("killed", "process-killed", r"^(?:[^:]{1,200}: line \d+: +)?\d*\s*Killed\b(?!:)"),
    _rule("core dumped", "process-killed", r"\b\w[\w ]{2,30}\(core dumped\)"),
    _rule("fatal python error:", "process-killed"),
    _rule("sigkill", "process-killed", r"(?:signal 9|died with).{0,20}SIGKILL"),
)


def rule_of(text: str) -> Rule | None:
    """The rule that a line matches, if one does."""
    lowered = text.lower()
    for rule in RULES:
        if rule.needle in lowered and rule.pattern.search(text):
            return rule
    return None
