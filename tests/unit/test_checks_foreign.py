"""Checks on what other people's runs stored and logged.

What accuses, what is context, what says nothing.

It works on hand-made evidence and opens no run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import (
    fatal_event,
    series_trust,
    stored_finiteness,
    stored_steps,
    stored_values,
    system_events,
)
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Event
from spiketriage.readers import events
from spiketriage.readers.telemetry.run.lineage import Telemetry

XID = Event(
    kind="xid",
    severity="fatal",
    sentence="Xid 79",
    source="dmesg.log",
    device="0000:9b:00",
    code=79,
)
DIED = Event(
    kind="worker-failure", severity="error", sentence="rank 3 died", source="out.log", rank=3
)


def series(**more: object) -> Series:
    return Series(
        source="log", name="loss/mean", written_as="loss", attempt=0, rank=None,
        steps=np.array([1, 2]), values=np.array([2.0, np.nan]), **more,
    )  # fmt: skip


def view(
    *found: Event, log: Series | None = None, generations: tuple[GenerationFacts, ...] = ()
) -> View:
    own = SyntheticRun().view()
    logs = () if log is None else (LogFacts(format="x", path=Path("log"), series=(log,)),)
    telemetry = own.telemetry  # of our own recorder, unless there is a log of somebody else's
    if log is not None:
        telemetry = Telemetry(segments=(), problems=(), logs=logs)
    return replace(own, telemetry=telemetry, events=found, generations=generations)


def generation(step: int, **more: object) -> GenerationFacts:
    return GenerationFacts(
        name=f"checkpoint-{step}", path=Path("x"), step=step, manifest=None, complete=True, layout="hf-trainer",
        file_digests={"w": "0"}, nonfinite=(), problems=(), **more,
    ) if "nonfinite" not in more else replace(generation(step), **more)  # fmt: skip


def test_a_device_that_reports_an_error_accuses_and_a_process_that_died_does_not() -> None:
    (found,) = system_events.run(view(DIED, XID, log=series()))
    assert (found.outcome, found.judged, found.where.key) == ("differs", True, "xid")
    assert found.summary == "0000:9b:00: Xid 79 (1 severe event in all)"
    (context,) = system_events.run(view(DIED, log=series()))
    assert (context.outcome, context.judged, context.where.rank) == ("differs", False, 3)
    assert system_events.run(view(XID))[0].judged  # on a run of our own recorder, too
    assert system_events.run(view(DIED)) == ()


def test_without_a_severe_event_it_agrees_and_without_any_it_says_nothing_was_there() -> None:
    (mild,) = system_events.run(view(replace(XID, severity="warning"), log=series()))
    assert mild.outcome == "agrees"
    (nothing,) = system_events.run(view(log=series()))
    assert nothing.outcome == "not testable"


def test_what_ended_the_run_accuses_and_a_device_has_a_check_of_its_own() -> None:
    late = replace(DIED, severity="fatal", step=9)
    early = replace(late, rank=5, step=4, device="cuda:1")
    (found,) = fatal_event.run(view(DIED, late, early, XID, log=series()))
    assert (found.outcome, found.judged) == ("differs", True)
    assert (found.where.step, found.where.rank, found.where.path) == (4, 5, "out.log")
    assert "rank 5 step 4 (cuda:1)" in found.summary
    assert "2 fatal events in all" in found.summary
    assert fatal_event.run(view(DIED, XID, log=series()))[0].outcome == "agrees"
    assert fatal_event.run(view(log=series())) == ()


def test_every_kind_of_device_error_is_one_that_a_reader_gives() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in Path(str(events.__file__)).parent.glob("*.py")
    )
    assert [kind for kind in system_events.HARDWARE if f'"{kind}"' not in text] == []


def test_a_series_that_cannot_be_believed_is_context() -> None:
    (doubt,) = series_trust.run(view(log=series(trusted=False, trust="never wired")))
    assert (doubt.outcome, doubt.judged) == ("differs", False)
    assert "never wired" in doubt.summary
    (fine,) = series_trust.run(view(log=series(reasons={1: "the key is missing"})))
    assert fine.outcome == "agrees"
    assert "1 value that the logs hide" in fine.summary
    assert series_trust.run(view()) == ()


def test_what_is_stored_is_finite_of_one_step_and_possible() -> None:
    good, bad = (
        generation(4, stated_steps={"name": 4, "optimizer": 4}),
        generation(6, nonfinite=("w: 3 NaN",)),
    )
    assert stored_finiteness.run(view(generations=(good,)))[0].outcome == "agrees"
    (nan,) = stored_finiteness.run(view(generations=(good, bad)))
    assert (nan.outcome, nan.where.step, nan.where.path) == ("nonfinite", 6, "checkpoint-6")
    assert stored_steps.run(view(generations=(good,)))[0].outcome == "agrees"
    (mixed,) = stored_steps.run(
        view(generations=(generation(8, stated_steps={"name": 8, "optimizer": 6}),))
    )
    assert mixed.outcome == "differs"
    assert "checkpoint-8" in mixed.summary
    (odd,) = stored_values.run(view(generations=(good, generation(5, odd=("v: negative",)))))
    assert (odd.outcome, odd.where.key) == ("differs", "v")


@pytest.mark.parametrize("check", [stored_steps, stored_values])
def test_generations_of_our_own_layout_are_not_asked(check) -> None:
    assert check.run(view(generations=(replace(generation(4), layout="native"),))) == ()


def test_counters_that_stay_apart_by_one_number_name_where_they_parted() -> None:
    stated = {
        step: {"name": step, "optimizer": step if step < 300 else step - 20}
        for step in (100, 200, 300, 400)
    }
    generations = tuple(generation(step, stated_steps=own) for step, own in stated.items())
    (found,) = stored_steps.run(view(generations=generations))
    assert (found.outcome, found.where.step, found.magnitude) == ("differs", 300, 20.0)
    assert "apart by the same 20 in checkpoint-300, checkpoint-400" in found.summary
    assert "since after checkpoint-200: a load set one of them" in found.summary
