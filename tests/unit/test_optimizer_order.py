"""An optimizer's integer keys are named only where module order and shapes leave exactly one answer."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from spiketriage.readers.checkpoints.building.optimizer_order import Named, assign


def named(*shapes):
    return [Named(name=f"p{number}", shape=shape) for number, shape in enumerate(shapes)]


def test_one_group_is_the_module_order():
    layers = named((2, 2), (2, 2), (2,))
    assert assign(layers, [[0, 1, 2]], {0: (2, 2), 2: (2,)}) == {0: "p0", 1: "p1", 2: "p2"}


def test_decayed_and_not_decayed_parameters_are_told_apart_by_shape():
    layers = named((2, 2), (2,), (2, 2), (2,))
    shapes = {0: (2, 2), 1: (2, 2), 2: (2,), 3: (2,)}
    assert assign(layers, [[0, 1], [2, 3]], shapes) == {0: "p0", 1: "p2", 2: "p1", 3: "p3"}


def test_two_possible_answers_are_none():
    assert assign(named((2,), (2,)), [[0], [1]], {0: (2,), 1: (2,)}) == {}


def test_another_number_or_another_shape_is_no_answer():
    assert assign(named((2,), (3,)), [[0]], {0: (2,)}) == {}
    assert assign(named((2,), (3,)), [[0, 1]], {0: (3,), 1: (2,)}) == {}


def test_without_any_shape_nothing_is_verified():
    assert assign(named((2,)), [[0]], {}) == {}


@given(st.lists(st.sampled_from([(2,), (3,), (2, 2)]), min_size=1, max_size=7), st.data())
def test_the_answer_is_what_trying_every_split_in_two_groups_gives(shapes, data):
    layers = named(*shapes)
    first = data.draw(st.sets(st.integers(0, len(shapes) - 1)))
    order = [*sorted(first), *(number for number in range(len(shapes)) if number not in first)]
    groups = [list(range(len(first))), list(range(len(first), len(shapes)))]
    held = {key: shapes[number] for key, number in enumerate(order)}
    answers = []
    for chosen in combinations(range(len(shapes)), len(first)):
        tried = [*chosen, *(number for number in range(len(shapes)) if number not in chosen)]
        if all(shapes[number] == held[key] for key, number in enumerate(tried)):
            answers.append({key: f"p{number}" for key, number in enumerate(tried)})
    assert assign(layers, groups, held) == (answers[0] if len(answers) == 1 else {})
