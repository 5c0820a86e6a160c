"""A metric is nonfinite although every tensor of its step was finite.

The telemetry is wrong, not the run.

This file is data; it never reads a metric.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, Cause

CAUSE = Cause(
    name="metric-artefact",
    cause_class="systems",
    summary="the metric is wrong; the tensors of the step were finite and replay bit for bit",
    predicts={"metric-consistency": ("differs",), "composition": ANY, "skip-batch": ANY},
    decides=("metric-consistency", "finiteness", "replay"),
    decides_on_spike=("suspect-batch/suspect-state",),
    located_by=("metric-consistency",),
    repair="none for the run: repair the logging path",
    control="none",
    verdict="telemetry-artefact",
)
