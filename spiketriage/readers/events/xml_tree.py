"""An XML tree from a file that somebody else wrote: no entities, bounded depth and size.

This module never expands an entity that the file declares and never keeps less than what came
before the damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from spiketriage.errors import CorruptFileError

MAX_DEPTH = 64
MAX_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlTree:
    """The root of what could be parsed, and a sentence if that is not all."""

    root: ElementTree.Element
    problem: str = ""


class _Builder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tree = ElementTree.TreeBuilder()
        self._open: list[str] = []
        self._num_elements = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._tree.data
        self.parser.EntityDeclHandler = self._refuse_entity

    def _refuse_entity(self, name: str, *_rest: object) -> None:
        raise CorruptFileError(
            self._path, "document type", expected="no entity declaration", seen=f"entity {name!r}"
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._num_elements += 1
        if len(self._open) >= MAX_DEPTH:
            raise CorruptFileError(
                self._path, "XML", expected=f"at most {MAX_DEPTH} levels", seen="more"
            )
        if self._num_elements > MAX_ELEMENTS:
            raise CorruptFileError(
                self._path, "XML", expected=f"at most {MAX_ELEMENTS} elements", seen="more"
            )
        self._open.append(tag)
        self._tree.start(tag, attributes)

    def _end(self, tag: str) -> None:
        self._open.pop()
        self._tree.end(tag)

    def close(self) -> ElementTree.Element | None:
        """Close what is still open and give the root; None if there never was one."""
        if not self._num_elements:
            return None
        for tag in reversed(self._open):
            self._tree.end(tag)
        return self._tree.close()


def parse(path: Path, data: bytes) -> XmlTree:
    """The tree in `data`, which came from `path`; damage ends it early and is said.

    Raises:
        CorruptFileError: it declares an entity, is nested or large beyond reason, or holds no
        element.
    """
    builder, problem = _Builder(path), ""
    try:
        builder.parser.Parse(data, True)
    # The latter two are raised for an encoding that does not exist.
    except (expat.ExpatError, ValueError, LookupError) as error:
        problem = f"{path.name}: is not XML to its end, what comes before is used: {error}"
    root = builder.close()
    if root is None:
        raise CorruptFileError(path, "content", expected="XML", seen=problem or "no element")
    return XmlTree(root=root, problem=problem)
