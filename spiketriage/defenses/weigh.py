"""Which defences against loss spikes a run has.

Evidence in, a verdict for each stabilizer out, in bring-up order.

It never guesses: what nothing speaks of is unknown, and every verdict names what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spiketriage.defenses.keys import ELSEWHERE, KEYS, ONE_MEANING, Mark
from spiketriage.readers.config_file import Setting
from spiketriage.train.stabilizers import STABILIZERS, Stabilizer

Status = Literal["on", "off", "unknown"]
# Strongest first: what the run shows beats what it wrote down, which beats a configuration, which
# beats source code.
Layer = Literal["seen", "recorded", "config", "source"]
LAYERS: tuple[Layer, ...] = ("seen", "recorded", "config", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that speaks of a defence (a stabilizer's name).

    What it says, how strong it is, and where it stands.
    """

    defense: str
    mark: Mark
    layer: Layer
    text: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defense:
    """The verdict on one stabilizer; `is_needed` is False where there is nothing to defend.

    `because` holds what decides, first of all; where the verdict is unknown, what speaks without
    deciding.
    """

    stabilizer: Stabilizer
    status: Status
    is_needed: bool = True
    because: tuple[str, ...] = field(default=())


def judged(evidence: Iterable[Evidence]) -> tuple[Defense, ...]:
    """A verdict for every stabilizer, in bring-up order."""
    by_name: dict[str, list[Evidence]] = {}
    for one in evidence:
        by_name.setdefault(one.defense, []).append(one)
    return tuple(_judge(member, by_name.get(member.name, [])) for member in STABILIZERS)


def from_settings(
    settings: Sequence[Setting], layer: Layer, *, switches: Sequence[str] = ()
) -> list[Evidence]:
    """What the table of keys reads in `settings`.

    `switches` are the names that a list `defenses` chooses from.
    """
    by_last: dict[str, list[Setting]] = {}
    for setting in settings:
        by_last.setdefault(_plain(setting.keys[-1]), []).append(setting)
    found = []
    for defense, keys in KEYS.items():
        for key in keys:
            wanted = key.name.lstrip("/").split("." if "." in key.name else "\0")
            for setting in by_last.get(wanted[-1], []):
                if _fits(wanted, setting.keys, key.name.startswith("/")):
                    mark = key.reads(setting.value)
                else:
                    mark = None
                if mark is not None:
                    found.append(
                        Evidence(
                            defense=defense,
                            mark=mark,
                            layer=layer,
                            text=_told(setting),
                            where=setting.where,
                        )
                    )
    return found + _listed(settings, layer, switches)


def _listed(settings: Sequence[Setting], layer: Layer, switches: Sequence[str]) -> list[Evidence]:
    """What the list of `spiketriage rehearse` says.

    A member is on, and what could be a member and is not is off.
    """
    lists = [
        one for one in settings if one.keys[-1] == "stabilizers" and isinstance(one.value, list)
    ]
    return [
        Evidence(
            defense=name,
            mark="on" if name in one.value else "off",
            layer=layer,
            text=_told(one),
            where=one.where,
        )
        for one in lists
        if all(isinstance(member, str) for member in one.value)
        for name in switches
    ]


def _fits(wanted: Sequence[str], keys: Sequence[str], is_top: bool) -> bool:
    plain = [_plain(key) for key in keys]
    if is_top and len(plain) != len(wanted):
        return False
    return plain[-len(wanted) :] == list(wanted) and not ELSEWHERE.intersection(plain[:-1])


def _plain(key: str) -> str:
    return key.replace("-", "_").removeprefix("__")


def _told(setting: Setting) -> str:
    if isinstance(setting.value, Mapping):
        value = "{…}"
    else:
        value = _shown(setting.value)
    return f"{setting.name:.80} = {value}"


def _shown(value: object) -> str:
    """A value on one line, whatever somebody wrote into a configuration."""
    try:
        return f"{value!r:.60}"
    except (
        ValueError,
        RecursionError,
    ):  # an integer of more digits than Python writes out, lists within lists
        return f"a {type(value).__name__} too large to show"


def _judge(member: Stabilizer, evidence: Sequence[Evidence]) -> Defense:
    verdicts = [
        _of_layer(member, [one for one in evidence if one.layer == layer]) for layer in LAYERS
    ]
    spoken = [one for one in verdicts if one.status != "unknown"]
    if not spoken:
        because = tuple(text for one in verdicts for text in one.because)
        return Defense(stabilizer=member, status="unknown", because=because)
    first, *weaker = spoken
    unneeded = next((one for one in spoken if not one.is_needed), None)
    if (
        first.status == "off" and unneeded is not None
    ):  # seen to be off, and a weaker source says why
        return unneeded
    against = tuple(
        f"but {text}" for one in weaker if one.status != first.status for text in one.because[:1]
    )
    return replace(first, because=(*first.because, *against))


def _of_layer(member: Stabilizer, evidence: Sequence[Evidence]) -> Defense:
    marks = {one.mark for one in evidence}

    def verdict(status: Status, *deciding: Mark, is_needed: bool = True) -> Defense:
        because = _because([one for one in evidence if one.mark in deciding])
        return Defense(stabilizer=member, status=status, is_needed=is_needed, because=because)

    if "never" in marks:
        return verdict("off", "never")
    if {"on", "off"} <= marks and member.name in ONE_MEANING:
        return verdict("unknown", "on", "off")
    if "on" in marks:
        return verdict("on", "on")
    if "unneeded" in marks:
        return verdict("off", "unneeded", is_needed=False)
    if "off" in marks:
        return verdict("off", "off")
    return verdict("unknown", "hint")


def _because(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The texts, each once, with every place that says so."""
    places: dict[str, list[str]] = {}
    for one in evidence:
        places.setdefault(one.text, []).append(one.where)
    return tuple(f"{text} ({'; '.join(dict.fromkeys(where))})" for text, where in places.items())
