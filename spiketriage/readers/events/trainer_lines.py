"""Reads exceptions and last words in a job's output: who raised what, at which step, how often.

This module never takes a local rank for a rank, and never calls fatal what a run outlived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from spiketriage.nouns.telemetry import Event, Severity
from spiketriage.readers.events.text_lines import TextLine, integer, short
from spiketriage.readers.events.trainer_rules import rule_of

MAX_CHARACTERS = 4096  # of a line that is looked at; a reason stands at its beginning
MAX_EPISODES = 10_000
MAX_OPEN_TRACEBACKS = 4096  # one a rank
MAX_RANKS_NAMED = 8
# The other ranks can end the step that they are in, and no more: a collective waits for the dead.
STEPS_THAT_SHOW_LIFE = 2
TRACEBACK = "Traceback (most recent call last)"
STOPPED_BY_HAND = ("KeyboardInterrupt", "SystemExit")

_PREFIX = re.compile(r"(?:\[(?:rank|default)?\d{1,6}\]: ?|\d{1,6}: (?=\S|  ))")
_RAISED = re.compile(r"((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80})(?::\s|:?$)")
_ERROR_NAME = re.compile(r"\w(?:Error|Exception|Interrupt)$")
_STEP = re.compile(
    r"\b(?:global_?step|iteration|iter|step)\b[\"']?\s{0,8}[:=]?\s{0,8}(\d{1,12})\b"
    r"|\b(\d{1,12})/\d{1,12} \[\d",
    re.I,
)
_RANK = re.compile(r"(?<![a-z_])(?<!local )rank[ :=]{0,3}(\d{1,9})\b", re.I)
_DEVICE = re.compile(r"\b(?:device[ :=]{1,3}|GPU |cuda:)(\d{1,4})\b", re.I)
_HOST = re.compile(r"\b(?:node|host(?:name)?)[ :=]{1,3}([A-Za-z][\w.-]{1,254})", re.I)
_AT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_EXIT_CODE = re.compile(r"exit ?code: (-?\d{1,9})")


@dataclass(slots=True)
class _Episode:
    """One thing that went wrong, said by one rank or by many in the same words."""

    event: Event
    num_times: int = 1
    ranks: set[int] = field(default_factory=set)
    num_later_steps: int = 0


@dataclass(slots=True)
class _Traceback:
    """A traceback that still waits for the line that names its exception."""

    frame: str = ""


class TrainerScanner:
    """Follows tracebacks and last words; equal ones of one step become one event."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._tracebacks: dict[str, _Traceback] = {}
        self._episodes: dict[tuple[str, str, int | None], _Episode] = {}
        self._unsettled: list[_Episode] = []

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of a line, the first time that it is said."""
        text = line.text[:MAX_CHARACTERS]
        self._follow_step(text)
        prefix = _PREFIX.match(text)
        own = text[prefix.end() :] if prefix else text
        mark = prefix[0] if prefix else ""
        if TRACEBACK in own:
            if len(self._tracebacks) < MAX_OPEN_TRACEBACKS:
                self._tracebacks[mark] = _Traceback()
            return
        traceback = self._tracebacks.get(mark)
        if traceback is not None and own.startswith("  "):
            if own.lstrip().startswith("File "):
                traceback.frame = own.strip()
            return
        event = self._event(line, mark, own, traceback)
        if event is not None:
            self._tracebacks.pop(mark, None)
            yield from self._first_time(event)

    def _event(
        self, line: TextLine, mark: str, own: str, traceback: _Traceback | None
    ) -> Event | None:
        rule, raised = rule_of(own), _RAISED.match(own)
        is_exception = raised is not None and (
            traceback is not None or _ERROR_NAME.search(raised[1]) is not None
        )
        if rule is None and not is_exception:
            return None
        kind, severity = "python-exception", _severity_of(own)
        if rule is not None:
            kind, severity = rule.kind, rule.severity
        where = f" ({traceback.frame})" if traceback is not None and traceback.frame else ""
        at, host, device = _AT.search(own), _HOST.search(own), _DEVICE.search(own)
        return Event(
            kind=kind,
            severity=severity,
            sentence=short(f"{own.strip()}{where}"),
            source=line.source,
            line=line.number,
            at=at[0] if at else "",
            host=host[1] if host else "",
            device=f"cuda:{device[1]}" if device else "",
            rank=_number(_RANK, mark) if "rank" in mark else _number(_RANK, own),
            step=self._step,
            code=_number(_EXIT_CODE, own),
        )

    def _follow_step(self, text: str) -> None:
        """Remember the step that the log states, and who has lived to see a later one."""
        stated = _STEP.search(text)
        if stated is None:
            return
        step = int(stated[1] or stated[2])
        before, self._step = self._step, step
        if before is not None and step < before:
            self._unsettled.clear()
        elif step != before:
            for episode in self._unsettled:
                episode.num_later_steps += 1
            self._unsettled = [
                episode
                for episode in self._unsettled
                if episode.num_later_steps < STEPS_THAT_SHOW_LIFE
            ]

    def _first_time(self, event: Event) -> Iterator[Event]:
        # Ranks, devices and addresses differ between processes that fail alike.
        key = (event.kind, re.sub(r"\d+", "#", event.sentence), event.step)
        episode = self._episodes.get(key)
        if episode is not None:
            episode.num_times += 1
        elif len(self._episodes) < MAX_EPISODES:
            episode = self._episodes[key] = _Episode(event=event)
            self._unsettled.append(episode)
            yield event
        if episode is not None and event.rank is not None:
            episode.ranks.add(event.rank)

    def finish(self, events: list[Event], /) -> list[Event]:
        """Say how often and by which ranks; what the run outlived is no longer fatal."""
        by_event = {id(episode.event): episode for episode in self._episodes.values()}
        return [
            _told_by_all(by_event[id(event)]) if id(event) in by_event else event
            for event in events
        ]

    def identity(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def problems(self) -> tuple[str, ...]:
        """That not every kind of failure was kept."""
        if len(self._episodes) < MAX_EPISODES:
            return ()
        return (f"only the first {MAX_EPISODES} different failures are kept",)

    def notes(self) -> tuple[str, ...]:
        """Where the step of a failure comes from."""
        if any(episode.event.step is not None for episode in self._episodes.values()):
            return ("the step of a failure is the last one that the log states before it",)
        return ()


def _severity_of(raised: str) -> Severity:
    return "warning" if raised.startswith(STOPPED_BY_HAND) else "fatal"


def _told_by_all(episode: _Episode) -> Event:
    event, notes = episode.event, []
    if episode.num_times > 1:
        notes.append(f"{episode.num_times} times")
    if len(episode.ranks) > 1:
        ranks = sorted(episode.ranks)
        named = ", ".join(str(rank) for rank in ranks[:MAX_RANKS_NAMED])
        more = len(ranks) - MAX_RANKS_NAMED
        notes.append(f"ranks {named}" + (f" and {more} more" if more > 0 else ""))
        notes.append(f"first rank {event.rank}")
    if episode.num_later_steps >= STEPS_THAT_SHOW_LIFE and event.severity == "fatal":
        event = replace(event, severity="error")
        notes.append("the run went on")
    if notes:
        event = replace(event, sentence=f"{event.sentence} [{'; '.join(notes)}]")
    return event


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    return integer(match[1])


def scanners() -> Iterable[TrainerScanner]:
    """What has to see the lines of a job's output."""
    return (TrainerScanner(),)
