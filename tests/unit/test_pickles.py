"""What a pickle names is never imported and never called.

Damage and greed are one error, honest pickles come whole.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copyreg
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers import pickles
from spiketriage.readers.inert import Stub, attribute, walk
from spiketriage.readers.pickle_keys import MAX_ITEMS, MAX_OPCODES
from spiketriage.readers.pickles import load, load_here


class Plain:
    def __init__(self) -> None:
        self.rate = 0.5


class Slotted:
    __slots__ = ("__dict__", "first")

    def __init__(self) -> None:
        self.first, self.second = 1, 2


class Listed(list):
    pass


class Mapped(dict):
    pass


def value_of(pickled: object, protocol: int = 4) -> Any:
    return load(pickle.dumps(pickled, protocol=protocol), where="test").value


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below) | st.tuples(below, below),
    max_leaves=20,
)


@settings(deadline=None)  # the first example starts the child
@given(PLAIN, st.integers(0, 5))
def test_plain_values_come_as_they_were(value, protocol):
    assert value_of(value, protocol) == value


@pytest.mark.parametrize("protocol", range(6))
def test_containers_of_the_standard_library_come_as_plain_ones(protocol):
    value = {
        "a": {1, 2},
        "b": frozenset({3}),
        "c": collections.OrderedDict(x=1),
        "d": bytearray(b"\x80y"),
        "e": 1j,
    }
    assert value_of(value, protocol) == {
        "a": {1, 2},
        "b": {3},
        "c": {"x": 1},
        "d": b"\x80y",
        "e": 1j,
    }


def test_a_set_of_what_is_no_scalar_is_not_made():
    stub = value_of({(1, 2)}, 2)
    assert isinstance(stub, Stub)
    assert (stub.qualified, stub.args) == ("builtins.set", ([(1, 2)],))


@pytest.mark.parametrize("protocol", range(6))
def test_objects_become_stubs_that_keep_their_state(protocol):
    value = value_of(Plain(), protocol)
    assert isinstance(value, Stub)
    assert value.qualified == f"{Plain.__module__}.Plain"
    assert attribute(value, "rate") == 0.5
    assert attribute(value, "other", "none") == "none"


def test_slots_and_dict_are_both_state():
    value = value_of(Slotted())
    assert (attribute(value, "first"), attribute(value, "second")) == (1, 2)


def test_subclasses_of_containers_keep_what_they_hold():
    assert list(value_of(Listed([1, 2])).items) == [1, 2]
    assert value_of(Mapped(a=1)).entries == {"a": 1}
    assert value_of(collections.defaultdict(list, b=[2])).entries == {"b": [2]}


def test_names_are_told_in_the_order_of_asking():
    loaded = load(pickle.dumps([argparse.Namespace(), Plain(), Plain()]), where="test")
    assert loaded.globals == ("argparse.Namespace", f"{Plain.__module__}.Plain")


def test_the_end_of_the_pickle_is_told():
    first = pickle.dumps({"a": 1})
    assert load(first + b"more", where="test").end == len(first)


@pytest.mark.parametrize("protocol", range(2, 5))
def test_random_states_of_numpy_and_python_are_readable_down_to_their_words(protocol):
    state = np.random.RandomState(3).get_state()
    value = value_of(state, protocol)
    words = next(part for part in value[1].state if isinstance(part, bytes))
    assert np.frombuffer(words, "<u4").tolist() == state[1].tolist()
    assert value_of(random.Random(1).getstate(), protocol) == random.Random(1).getstate()


PAYLOADS = {
    "os.system": b"cos\nsystem\n(S'touch PLANTED'\ntR.",
    "posix.system": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0dtouch PLANTED\x85R.",
    "builtins.eval": b'c__builtin__\neval\n(S\'open("PLANTED", "w")\'\ntR.',
    "builtins.getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR(S'touch PLANTED'\ntR.",
    "torch.load": b"ctorch\nload\n(S'x.pt'\ntR.",
    "turtle.Turtle by INST": b"(S'x'\niturtle\nTurtle\n.",
    "by OBJ": b"(cos\nsystem\nS'touch PLANTED'\no.",
    "by NEWOBJ": b"\x80\x02cos\nsystem\nS'touch PLANTED'\n\x85\x81.",
    "by BUILD": b"\x80\x02ccode\nInteractiveConsole\n)\x81}S'__class__'\ncos\nsystem\nsb.",
}


def test_nothing_that_a_pickle_names_is_imported_or_run(tmp_path):
    for number, data in enumerate(PAYLOADS.values()):
        (tmp_path / f"{number}.pkl").write_bytes(data)
    script = """
import sys
from pathlib import Path
from spiketriage.errors import CorruptFileError
from spiketriage.readers.pickles import load
before = set(sys.modules)
for path in sorted(Path().glob("*.pkl")):
    try:
        print(path.stem, *load(path.read_bytes(), where=path).globals)
    except CorruptFileError as error:
        print(error)
print("imported", sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(pickles.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "0 os.system"
    assert lines[3] == (
        "3.pkl: pickle: expected an intact pickle, found TypeError: 'Stub' object is not callable"
    )
    assert lines[4:-1] == [
        "4 torch.load",
        "5 turtle.Turtle",
        "6 os.system",
        "7 os.system",
        lines[8],
    ]
    assert lines[8] == "8 code.InteractiveConsole os.system"
    assert lines[-1] == "imported []"
    assert not (tmp_path / "PLANTED").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x99N.",
        b"garbage",
        pickle.dumps({"a": [1, 2, 3]})[:-3],
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a memo of 4 billion slots
        b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"x.",  # bytes of 4 EB
        b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"x.",  # text of 1 TB
        b"\x80\x02}]Ns.",  # a list as a key
        b"\x80\x04\x8c\x01ah\x05.",  # a memo slot that is not there
        b"\x82\x01.",  # an extension code
        b"\x80\x05\x97.",  # an out-of-band buffer
        b"Pid\n.",  # a persistent id
        # sets the defaults of a function of ours
        b"c_codecs\nencode\n(N}S'__defaults__'\n(I1\ntstb.",
        b"c_codecs\nencode\n}S'a'\nI1\nsb.",
        b"ccollections\nOrderedDict\n}S'items'\nI1\nsb.",  # sets an attribute of a class of ours
        b"cos\npath\n}S'x'\nI1\nsb.",
    ],
)
def test_damage_and_greed_are_one_error(data):
    with pytest.raises(CorruptFileError, match="test: pickle: expected"):
        load(data, where="test")


GREED = """
from spiketriage.errors import CorruptFileError
from spiketriage.readers import pickles
try:
    pickles.load(b"\\x80\\x04" + b"\\x8f" * 1_000_000 + b".", where="test")
except CorruptFileError as error:
    print(error.message)
"""


def test_a_million_sets_of_one_byte_each_are_refused_for_the_memory_that_they_take() -> None:
    # In a process of its own: one that has freed much memory before has room for them.
    told = subprocess.run([sys.executable, "-c", GREED], capture_output=True, text=True, check=True)
    assert told.stdout == "test: pickle: expected an intact pickle, found MemoryError\n"


def test_a_lying_length_of_a_bytearray_is_an_error():
    # In a process of its own: CPython prints a warning of its own when it cannot make the
    # bytearray.
    script = (
        "from spiketriage.readers.pickles import load\nfrom spiketriage.errors import "
        "CorruptFileError\n"
        "try: load(b'\\x80\\x05\\x96' + (1 << 40).to_bytes(8, 'little') + b'.', where='x')\n"
        "except CorruptFileError as error: print(error)"
    )
    root = str(Path(pickles.__file__).parents[2])
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert "found MemoryError" in done.stdout


def test_a_function_of_ours_is_unchanged_after_an_attack():
    with pytest.raises(CorruptFileError):
        load(b"ccopyreg\n_reconstructor\n(N}S'__call__'\nI1\nstb.", where="test")
    assert value_of(Plain(), 0).qualified.endswith(".Plain")  # protocol 0 uses that function
    assert copyreg.__name__ == "copyreg"


def test_deep_and_wide_pickles_are_read_or_refused():
    with pytest.raises(EvidenceError, match="test: cannot be read: it is nested deeper than any"):
        load(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", where="test")
    wide = load(b"\x80\x04](" + b"N" * 10_000_000 + b"e.", where="test").value
    assert len(wide) == 10_000_000
    assert [leaf.value for leaf in walk(wide, max_nodes=5)] == [None, None, None, None, ...]


def text(word: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word


PRIME = (1 << 61) - 1  # what Python takes an integer's hash by
COLLIDING = b"".join(b"\x8a\x0a" + (PRIME * at).to_bytes(10, "little") for at in range(1, 100_001))
COSTLY = {
    "a key of 2^40 tuples": b"\x80\x04})" + b"2\x86" * 40 + b"Ns.",
    "a member of a set": b"\x80\x04\x8f()" + b"2\x86" * 40 + b"\x90.",
    "a member of a frozenset": b"\x80\x04()" + b"2\x86" * 40 + b"\x91.",
    "a key of a subclass": b"\x80\x04cfoo\nBar\n)R)" + b"2\x86" * 40 + b"Ns.",
    "a key 900,000 deep": b"\x80\x04})" + b"\x85" * 900_000 + b"Ns.",
    "integers of one hash": b"\x80\x04\x8f(" + COLLIDING + b"\x90.",
}
INERT = {
    "punycode": b"\x80\x04c__builtin__\nstr\n"
    + b"B" + struct.pack("<I", 200_001) + b"-" + b"9" * 200_000 + text(b"punycode") + b"\x86R.",
    "digits": b"\x80\x04c__builtin__\nint\n" + text(b"9" * 1_000_000) + b"\x85R.",
    "digits to the base 32": b"\x80\x04c__builtin__\nfloat\nc__builtin__\nint\n"
    + text(b"1" * 1_000_000) + b"K\x20\x86R\x85R.",
}  # fmt: skip


@pytest.mark.parametrize("what", COSTLY)
def test_a_key_that_is_costly_to_hash_is_refused_by_its_shape(what):
    with pytest.raises(CorruptFileError, match=r"test: pickle, byte \d+: expected keys that"):
        load_here(COSTLY[what], where="test")


@pytest.mark.slow
def test_what_takes_long_to_hash_costs_its_file_and_the_next_is_read():
    late = b"N0" * (MAX_OPCODES // 2) + COSTLY["a key of 2^40 tuples"].removeprefix(b"\x80\x04")
    with pytest.raises(EvidenceError, match="test: cannot be read: reading it took more CPU time"):
        load(b"\x80\x04" + late, where="test")
    assert value_of({"a": 1}) == {"a": 1}


SCALAR = st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text() | st.binary()
TUPLE = st.lists(SCALAR, max_size=MAX_ITEMS).map(tuple)
HELD = st.recursive(
    SCALAR | TUPLE,
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(SCALAR | TUPLE, below, max_size=4)
        | st.sets(SCALAR | TUPLE, max_size=4)
        | st.tuples(below, below)
    ),
    max_leaves=10,
)
UNUSUAL = (
    st.tuples(TUPLE)
    | st.tuples(SCALAR, st.tuples(SCALAR, TUPLE))
    | st.lists(SCALAR, min_size=MAX_ITEMS + 1, max_size=MAX_ITEMS + 9).map(tuple)
    | st.integers(min_value=1 << 80)
    | st.tuples(st.integers(max_value=-(1 << 80)))
    | st.frozensets(SCALAR)
)


@given(HELD, st.integers(4, 5))
def test_scalars_and_short_flat_tuples_are_keys_and_members(value, protocol):
    assert load_here(pickle.dumps(value, protocol=protocol), where="test").value == value


@given(UNUSUAL, st.sampled_from((lambda key: {key: 1}, lambda key: {"a", key})), HELD)
def test_no_other_value_is_a_key_or_a_member_wherever_it_stands(key, make, beside):
    for value in (make(key), [beside, make(key)], {"a": (beside, [make(key)])}):
        with pytest.raises(CorruptFileError, match="expected keys that are scalars or flat tuples"):
            load_here(pickle.dumps(value, protocol=4), where="test")
    assert load_here(pickle.dumps([key, beside], protocol=4), where="test").value == [key, beside]


# Pushes, makers of tuples and sets, and what sets items, in any order: mostly nonsense, often not.
OPCODES = (
    *(b"N", b"K\x01", b"\x8a\x01\x07", b"\x8a\x0a" + b"\x01" * 10, b"\x8c\x01a", b")", b"}"),
    *(b"\x85", b"\x86", b"\x87", b"2", b"0", b"(", b"t", b"l", b"d", b"\x8f", b"\x90", b"\x91"),
    *(b"\x94", b"h\x00", b"h\x01", b"q\x02", b"h\x02", b"s", b"u", b"cfoo\nBar\n", b")R", b"1"),
    *(b"I12345678901234567890123\n", b"L5L\n", b"S'x'\n", b"a", b"e", b"b", b"P7\n", b"\x95" * 9),
)


@settings(max_examples=2000, deadline=None)
@given(
    st.lists(st.sampled_from(OPCODES), max_size=14),
    st.sampled_from((b"", b"})\x85", b"}(NN", b"\x8f(")),
)
def test_whatever_a_pickle_does_its_keys_are_plain(opcodes, before):
    """By a route of its own: what does load is looked at, key by key."""
    try:
        value = load_here(b"\x80\x04" + before + b"".join(opcodes) + b".", where="test").value
    except CorruptFileError:
        return
    for key in keys_within(value):
        items = key if type(key) is tuple else (key,)
        assert len(items) <= MAX_ITEMS
        assert not any(isinstance(item, tuple | frozenset) for item in items)
        assert all(item.bit_length() <= 72 for item in items if isinstance(item, int))


def keys_within(value: Any) -> list[Any]:
    """Every key and member in a value, which may hold itself."""
    keys, waiting, seen = [], [value], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Stub):
            waiting += [value.args, value.state, value.items, dict(value.entries)]
        elif isinstance(value, dict):
            keys += value
            waiting += value.values()
        elif isinstance(value, set | frozenset):
            keys += value
        elif isinstance(value, list | tuple):
            waiting += value
    return keys


@pytest.mark.parametrize("what", INERT)
def test_conversions_are_not_done(what):
    assert isinstance(load(INERT[what], where="test").value, Stub)


def test_a_list_that_holds_itself_twice_sixty_times_has_few_leaves():
    lists: list[Any] = [[]]
    for _ in range(60):
        lists.append([lists[-1], lists[-1]])
    assert sum(1 for _ in walk(value_of(lists[-1]))) < 400_000


def test_shared_flat_values_are_walked_every_time():
    betas = (0.9, 0.95)
    leaves = list(walk(value_of([{"betas": betas} for _ in range(10_000)])))
    assert len(leaves) == 20_000
    assert {leaf.value for leaf in leaves} == {0.9, 0.95}


def test_limits_are_as_before_after_a_load():
    import gc
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS), gc.isenabled()
    with pytest.raises(CorruptFileError):
        load(b"\x80\x02Nr\xff\xff\xff\xff.", where="test")
    assert (resource.getrlimit(resource.RLIMIT_AS), gc.isenabled()) == before


def test_a_cycle_is_cut():
    ring: list[Any] = [1]
    ring.append({"back": ring})
    assert [(leaf.path, leaf.value) for leaf in walk(value_of(ring))] == [
        (("0",), 1),
        (("1", "back"), ...),
    ]


def test_leaves_come_with_their_paths():
    value = value_of({"a": [1, {"b": Plain()}], 2: ()})
    expected = [(("a", "0"), 1), (("a", "1", "b", "rate"), 0.5), (("2",), ())]
    assert [(leaf.path, leaf.value) for leaf in walk(value)] == expected


def test_functions_of_ours_replace_what_the_pickle_names():
    rebuild = {f"{Plain.__module__}.Plain": lambda *args: ("ours", args)}
    data = f"c{Plain.__module__}\nPlain\n(I7\ntR.".encode()
    assert load_here(data, where="test", rebuild=rebuild).value == ("ours", (7,))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_flipped_byte_or_cut_is_a_value_or_the_one_error(data):
    good = pickle.dumps({"a": [Plain(), (1, 2.5, "x")], "b": collections.OrderedDict(c=b"bytes")})
    at = data.draw(st.integers(0, len(good) - 1))
    bad = (
        good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
        if data.draw(st.booleans())
        else good[:at]
    )
    with contextlib.suppress(CorruptFileError):
        sum(1 for _ in walk(load(bad, where="test").value))
