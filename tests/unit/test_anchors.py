"""Which generation a replay starts from, decided from measurements alone."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from spiketriage.diagnosis.anchors import select_anchors
from spiketriage.nouns.checkpoint import GenerationFacts


def generation(step, *, complete=True, problems=(), nonfinite=()):
    return GenerationFacts(
        name=f"step-{step:06d}",
        path=Path("/run/checkpoints") / f"step-{step:06d}",
        step=step,
        manifest=None,
        complete=complete,
        file_digests={},
        nonfinite=nonfinite,
        problems=problems,
    )


def test_the_newest_sound_generation_older_than_onset_is_known_good():
    anchors = select_anchors([generation(20), generation(40), generation(60)], 41, 41, "why")
    assert (anchors.known_good, anchors.older_good) == ("step-000040", "step-000020")
    assert anchors.refused == {"step-000060": "not older than the onset at step 41"}
    assert (anchors.onset, anchors.suspect, anchors.reason) == (41, 41, "why")


def test_a_generation_of_the_onset_step_already_holds_its_damage():
    assert select_anchors([generation(40)], 40, 40, "").known_good is None


def test_each_newer_unsound_generation_says_why():
    anchors = select_anchors(
        [
            generation(10),
            generation(20, complete=False),
            generation(30, problems=("file x: digest", "more")),
            generation(40, nonfinite=("params: w",)),
        ],
        None,
        None,
        "audit",
    )
    assert anchors.known_good == "step-000010"
    assert anchors.refused == {
        "step-000020": "incomplete",
        "step-000030": "file x: digest (and 1 more)",
        "step-000040": "not finite: params: w",
    }


def test_none_at_all_is_no_error():
    anchors = select_anchors([], 5, 5, "")
    assert (anchors.known_good, anchors.older_good, anchors.refused) == (None, None, {})


@given(
    steps=st.lists(st.tuples(st.integers(0, 50), st.booleans()), unique_by=lambda pair: pair[0]),
    onset=st.none() | st.integers(0, 50),
)
def test_no_sound_older_generation_is_ever_passed_over(steps, onset):
    anchors = select_anchors([generation(s, complete=ok) for s, ok in steps], onset, onset, "")
    sound = sorted((s for s, ok in steps if ok and (onset is None or s < onset)), reverse=True)
    names = [f"step-{s:06d}" for s in sound[:2]] + [None, None]
    assert [anchors.known_good, anchors.older_good] == names[:2]
