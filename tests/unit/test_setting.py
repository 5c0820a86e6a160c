"""The band that every experiment is measured against: a spike of a young run stands out of it."""

from __future__ import annotations

import math
from dataclasses import replace

from synthetic_view import SyntheticRun

from spiketriage.diagnosis.band import distance
from spiketriage.diagnosis.derive import make_setting


def test_a_spike_of_a_run_whose_loss_still_falls_fast_is_far_outside_and_an_older_loss_is_not() -> (
    None
):
    run = SyntheticRun()
    for rank in run.ranks:
        for step in range(1, 81):
            run.metric(rank, step, loss__mean=1 + 3.5 * math.exp(-step / 22))
        run.metric(
            rank, 75, loss__mean=4.6
        )  # as at the beginning: noise to a model that knows nothing of it
    view = run.view(suspect=75)
    anchors = replace(view.anchors, known_good="step-000060", older_good="step-000040")
    setting = make_setting(view, anchors, alarmed=True)
    spike, older = (distance(run.record(0, step), setting.band) for step in (75, 41))
    assert spike > 5
    assert older < setting.threshold < spike
