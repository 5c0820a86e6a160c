"""The settings of a run, `spiketriage.toml`: which folders hold what, how its trainer is started.

This module never guesses: an unknown key or a wrong type is refused, and no path in the file is
opened here.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from spiketriage.errors import EvidenceError, UsageError
from spiketriage.nouns.incident import SETTINGS_NAME, RunSettings
from spiketriage.readers.boundary import places_outside
from spiketriage.readers.discover import GUESS, Claim, discover
from spiketriage.readers.events.folder import read_events
from spiketriage.redaction import Patterns

FILE_NAME = SETTINGS_NAME
# How trials can be started: what `diagnosis/launch.py` has a launcher for.
LAUNCH_KINDS = ("torchrun",)
_STRICT = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    __pydantic_config__ = _STRICT
    id: str
    telemetry: str = "telemetry"
    checkpoints: str = "checkpoints"
    data_index: str | None = None
    config: str | None = None
    code: str | None = None
    logs: tuple[str, ...] = ("logs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    __pydantic_config__ = _STRICT
    harness: str = ""
    python_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    __pydantic_config__ = _STRICT
    kind: str = LAUNCH_KINDS[0]
    nproc_per_node: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redact:
    """Regular expressions: for names of keys, whatever the case, and for values anywhere."""

    __pydantic_config__ = _STRICT
    keys: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    __pydantic_config__ = _STRICT
    schema: Literal[1]
    run: _Run
    trainer: _Trainer = field(default_factory=_Trainer)
    launch: _Launch = field(default_factory=_Launch)
    columns: dict[str, str] = field(default_factory=dict)
    redact: _Redact = field(default_factory=_Redact)


def require_run(run: Path) -> None:
    """Do nothing if `run` is a run folder that can be read; nothing in it is judged.

    Raises:
        EvidenceError: the folder is missing, unreadable or not a run.
    """
    run = run.absolute()
    if _read(run, run / FILE_NAME) is None:
        _discovered(run)


def read_settings(run: Path) -> RunSettings:
    """The settings of the run in folder `run`, with every path made absolute.

    Without a file, what is found there.

    Raises:
        EvidenceError: the folder is missing, unreadable or not a run.
        UsageError: the file is not valid TOML, holds an unknown key or a value of the wrong type.
    """
    run = Path(os.path.abspath(run))
    path = run / FILE_NAME
    data = _read(run, path)
    if data is None:
        return _discovered(run)
    return _absolute(run, _parse(path, data))


def _discovered(run: Path) -> RunSettings:
    """Settings for a run of somebody else's trainer: what formats claim, where it lies.

    Events alone are a run, too: a hang may have left nothing else.
    """
    # Readers with all that they import, which a run with settings does not need.
    from spiketriage.readers.checkpoints.layouts import own_generation  # noqa: PLC0415
    from spiketriage.readers.telemetry.stores import native  # noqa: PLC0415

    discovery = discover(run)
    logs = tuple(claim.path for claim in discovery.of("events"))
    has_more = bool(discovery.of("checkpoint") or discovery.of("telemetry"))
    if not logs and not has_more:
        logs = tuple(_logs_with_events(run))
    if not logs and not has_more:
        seen = "nothing of a known format"
        if discovery.claims:
            seen = f"{len(discovery.claims)} other known files"
        message = (
            f"{run}: is not a run folder: expected {FILE_NAME}, or a checkpoint or a log "
            f"of a known format in it, found {seen}"
        )
        raise EvidenceError(message, hint=_three_lines(run / FILE_NAME))
    return replace(
        _absolute(run, _File(schema=1, run=_Run(id=run.name))),
        telemetry=_ours(discovery.of("telemetry"), native.NAME) or run,
        checkpoints=_ours(discovery.of("checkpoint"), own_generation.NAME) or run,
        logs=logs,
        outside={},  # nobody named anything
    )


def _ours(claims: Sequence[Claim], name: str) -> Path | None:
    """The one folder in which our own recorder wrote; None where it did not, or in several."""
    folders = {claim.path.parent for claim in claims if name == claim.format.NAME}
    if len(folders) == 1:
        return folders.pop()
    return None


def _logs_with_events(run: Path) -> Iterator[Path]:
    """Text files that only a guess takes for a job's output, and that hold an event somewhere."""
    for claim in discover(run, at_least=GUESS).claims:
        if any(read_events(claim.path, at_least=GUESS)):
            yield claim.path


def _read(run: Path, path: Path) -> bytes | None:
    """The bytes of the settings; None where the folder has none."""
    try:
        if not any(run.iterdir()):
            raise EvidenceError(
                f"{run}: the run folder is empty: expected {FILE_NAME} and the run's files"
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        if not run.exists():
            raise EvidenceError(f"{run}: there is no such run folder") from error
        return None
    except NotADirectoryError as error:
        raise EvidenceError(f"{run}: is not a folder: expected a run folder") from error
    except OSError as error:
        raise EvidenceError(
            f"{error.filename or run}: cannot be read: {error.strerror or error}"
        ) from error


def _three_lines(path: Path) -> str:
    """The command that writes the shortest settings that work for a run in the usual layout."""
    lines = r"""'schema = 1\n[run]\nid = "%s"\n'"""
    return f"printf {lines} {shlex.quote(path.parent.name)} > {shlex.quote(str(path))}"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # it cannot be looked at: whoever reads it will say why


def _parse(path: Path, data: bytes) -> _File:
    from pydantic import TypeAdapter, ValidationError

    try:
        file = TypeAdapter(_File).validate_python(tomllib.loads(data.decode()))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start}: expected UTF-8 text, found {error.reason}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: expected TOML, found: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {where}: {first['msg']} (found {first['input']!r})") from error
    if file.launch.kind not in LAUNCH_KINDS:
        known = ", ".join(LAUNCH_KINDS)
        raise UsageError(
            f"{path}: launch.kind: trials cannot be started by {file.launch.kind!r}; "
            f"what can start them: {known}",
            hint=f"write kind = {LAUNCH_KINDS[0]!r}, or leave the line out",
        )
    return file


def _absolute(run: Path, file: _File) -> RunSettings:
    def place(stated: str) -> Path:
        return Path(os.path.normpath(run / stated))

    def optional(stated: str | None, default: str) -> Path | None:
        # A default that is absent is not an error; a stated path is, and its reader will say so.
        if stated is None:
            if _is_there(run / default):
                return run / default
            return None
        if stated:
            return place(stated)
        return None

    settings = RunSettings(
        run=run,
        run_id=file.run.id,
        telemetry=place(file.run.telemetry),
        checkpoints=place(file.run.checkpoints),
        data_index=optional(file.run.data_index, "data/index.json"),
        config=optional(file.run.config, "config.json"),
        code=optional(file.run.code, "code"),
        logs=tuple(place(name) for name in file.run.logs),
        harness=file.trainer.harness,
        python_path=tuple(str(run / name) for name in file.trainer.python_path),
        launch_kind=file.launch.kind,
        num_processes=file.launch.nproc_per_node,
        columns={written: name for name, written in file.columns.items()},
        redact=Patterns(
            keys=_compiled(run, "keys", file.redact.keys, re.IGNORECASE),
            values=_compiled(run, "patterns", file.redact.patterns),
        ),
    )
    return replace(settings, outside=places_outside(run, _named(file, settings)))


def _compiled(
    run: Path, key: str, stated: tuple[str, ...], flags: re.RegexFlag = re.NOFLAG
) -> tuple[re.Pattern[str], ...]:
    """Patterns as a person wrote them.

    Raises:
        UsageError: one is no regular expression.
    """
    patterns = []
    for text in stated:
        try:
            patterns.append(re.compile(text, flags))
        except re.error as error:
            raise UsageError(
                f"{run / FILE_NAME}: redact.{key}: expected a regular expression, found "
                f"{text!r}: {error}"
            ) from error
    return tuple(patterns)


def _named(file: _File, settings: RunSettings) -> dict[str, Path]:
    """The places that settings name, by key: folders, and what else the file states."""
    named = {"telemetry": settings.telemetry, "checkpoints": settings.checkpoints}
    if settings.code is not None:
        named["code"] = settings.code
    # a file at its usual place that is a link is told when it is to be copied
    if settings.config is not None and file.run.config is not None:
        named["config"] = settings.config
    if settings.data_index is not None and file.run.data_index is not None:
        named["data_index"] = settings.data_index.parent  # where its shards lie
    for number, path in enumerate(settings.logs, start=1):
        named[f"logs, entry {number}"] = path
    return named
