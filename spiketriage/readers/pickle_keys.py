"""Follows the opcodes of a pickle, to refuse keys and members of sets that are costly to hash.

This module never makes an object of what it reads. What it cannot follow it leaves to the
unpickler, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spiketriage.errors import CorruptFileError

MAX_ITEMS = 64  # of a tuple that is a key: as many as a tensor has dimensions
MAX_NUMBER_BYTES, MAX_DIGITS = 9, 20  # 64 bits; longer numbers can be chosen to hash alike
# A sixth of a second's worth. What a longer pickle does later is bounded by the time of its load.
MAX_OPCODES = 1_000_000
# How what lies on the unpickler's stack is hashed: at once (an object by its identity), item by
# item, or with all that it holds and shares, as deep and as often as the pickle says.
_AT_ONCE, _FLAT, _COSTLY = range(3)

_MEMOIZE, _BINGET, _STOP = 0x94, ord("h"), ord(".")
# Opcodes that push what is hashed at once or never, by the number of bytes that follow …
_PUSHED: Mapping[int, int] = {
    **dict.fromkeys(b"N\x88\x89]}\x8f\x97", 0),
    **dict.fromkeys(b"K\x82", 1),
    **dict.fromkeys(b"M\x83", 2),
    **dict.fromkeys(b"J\x84", 4),
    **dict.fromkeys(b"G", 8),
}
# … and by the number of bytes that say how many follow.
_COUNTED: Mapping[int, int] = {
    **dict.fromkeys(b"\x8cUC", 1),
    **dict.fromkeys(b"XTB", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}


def require_plain_keys(data: bytes, *, where: object) -> None:
    """Do nothing where every key is a scalar, an object, or a flat tuple of a few of those.

    Raises:
        CorruptFileError: one is something else.
    """
    scan = _Scan(data, where)
    try:
        scan.run()
    except (LookupError, ValueError):
        return


class _Scan:
    """The unpickler's stack and memo, with how a thing is hashed in the place of the thing."""

    def __init__(self, data: bytes, where: object) -> None:
        self.at = 0
        self._data, self._where = data, where
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    def run(self) -> None:
        """Follow the pickle to its end; the commonest opcodes are handled here, for speed."""
        data, stack, memo = self._data, self._stack, self._memo
        for _ in range(MAX_OPCODES):
            opcode = data[self.at]
            self.at += 1
            if opcode == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif opcode == _BINGET:
                stack.append(memo[data[self.at]])
                self.at += 1
            elif opcode in _PUSHED:
                stack.append(_AT_ONCE)
                self.at += _PUSHED[opcode]
            elif opcode in _COUNTED:
                self.skip(self.number(_COUNTED[opcode]))
                stack.append(_AT_ONCE)
            elif opcode == _STOP:
                return
            else:
                _OTHERS[opcode](self)

    def number(self, num_bytes: int) -> int:
        """The number in the next bytes."""
        start = self.at
        self.at += num_bytes
        return int.from_bytes(self._data[start : self.at], "little")

    def line(self) -> bytes:
        """The text up to the end of the line."""
        start, end = self.at, self._data.index(b"\n", self.at)
        self.at = end + 1
        return self._data[start:end]

    def skip(self, num_bytes: int) -> None:
        self.at += num_bytes

    def push(self, cost: int = _AT_ONCE) -> None:
        self._stack.append(cost)

    def push_tuple(self, items: list[int]) -> None:
        is_flat = len(items) <= MAX_ITEMS and not any(items)
        self.push(_FLAT if is_flat else _COSTLY)

    def push_number(self, *, is_short: bool) -> None:
        self.push(_AT_ONCE if is_short else _COSTLY)

    def push_long(self, num_bytes: int) -> None:
        self.skip(num_bytes)
        self.push_number(is_short=num_bytes <= MAX_NUMBER_BYTES)

    def push_again(self) -> None:
        self.push(self._stack[-1])

    def taken(self, num_items: int) -> list[int]:
        """The last items, off the stack."""
        start = len(self._stack) - num_items
        if start < 0:
            raise IndexError("the stack is empty")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def taken_to_mark(self) -> list[int]:
        return self.taken(len(self._stack) - self._marks.pop())

    def drop(self) -> None:
        """Take a mark off where the last thing is one, else the last thing."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self.taken(1)

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def hash(self, keys: list[int]) -> None:
        if _COSTLY in keys:
            raise CorruptFileError(
                self._where,
                f"pickle, byte {self.at - 1}",
                expected=f"keys that are scalars or flat tuples of at most {MAX_ITEMS} of them",
                seen="a tuple of tuples, a longer one, a frozen set, or a number over 64 bits",
            )

    def hash_members(self) -> None:
        self.hash(self.taken_to_mark())

    def hash_keys(self) -> None:
        self.hash(self.taken_to_mark()[::2])


def _frozen(scan: _Scan) -> None:
    scan.hash_members()
    scan.push(_COSTLY)


def _dict(scan: _Scan) -> None:
    scan.hash_keys()
    scan.push()


def _named(scan: _Scan) -> None:
    scan.line()
    scan.line()
    scan.push()


def _instance(scan: _Scan) -> None:
    scan.taken_to_mark()
    _named(scan)


def _text(scan: _Scan) -> None:
    scan.line()
    scan.push()


def _made_of(num_parts: int) -> Callable[[_Scan], None]:
    """An object in the place of so many parts."""

    def make(scan: _Scan) -> None:
        scan.taken(num_parts)
        scan.push()

    return make


def _from_mark(scan: _Scan) -> None:
    scan.taken_to_mark()
    scan.push()


_OTHERS: Mapping[int, Callable[[_Scan], object]] = {
    ord("j"): lambda scan: scan.get(scan.number(4)),
    ord("g"): lambda scan: scan.get(int(scan.line())),
    ord("q"): lambda scan: scan.put(scan.number(1)),
    ord("r"): lambda scan: scan.put(scan.number(4)),
    ord("p"): lambda scan: scan.put(int(scan.line())),
    ord("("): _Scan.mark,
    ord(")"): lambda scan: scan.push(_FLAT),
    0x85: lambda scan: scan.push_tuple(scan.taken(1)),
    0x86: lambda scan: scan.push_tuple(scan.taken(2)),
    0x87: lambda scan: scan.push_tuple(scan.taken(3)),
    ord("t"): lambda scan: scan.push_tuple(scan.taken_to_mark()),
    ord("l"): _from_mark,
    ord("d"): _dict,
    ord("s"): lambda scan: scan.hash(scan.taken(2)[:1]),
    ord("u"): _Scan.hash_keys,
    ord("a"): lambda scan: scan.taken(1),
    ord("e"): _Scan.taken_to_mark,
    0x90: _Scan.hash_members,
    0x91: _frozen,
    ord("c"): _named,
    ord("i"): _instance,
    ord("o"): _from_mark,
    0x93: _made_of(2),
    ord("R"): _made_of(2),
    0x81: _made_of(2),
    0x92: _made_of(3),
    ord("b"): lambda scan: scan.taken(1),
    ord("0"): _Scan.drop,
    ord("1"): _Scan.taken_to_mark,
    ord("2"): _Scan.push_again,
    ord("P"): _text,
    ord("Q"): _made_of(1),
    ord("I"): lambda scan: scan.push_number(is_short=len(scan.line()) <= MAX_DIGITS),
    ord("L"): lambda scan: scan.push_number(is_short=len(scan.line()) <= MAX_DIGITS),
    ord("F"): _text,
    ord("S"): _text,
    ord("V"): _text,
    0x8A: lambda scan: scan.push_long(scan.number(1)),
    0x8B: lambda scan: scan.push_long(scan.number(4)),
    0x80: lambda scan: scan.skip(1),
    0x95: lambda scan: scan.skip(8),
    0x98: lambda scan: None,
}
