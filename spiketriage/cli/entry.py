"""The edge of the program: what goes wrong becomes a sentence and an exit code.

Nothing below this module prints an error, and no traceback reaches the terminal while a disk can
take it.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer

from spiketriage import __version__, durable
from spiketriage.cli.show import emit, encodable, envelope
from spiketriage.cli.signals import Ending
from spiketriage.errors import Exit, SpiketriageError
from spiketriage.foreign_text import pastable, printable
from spiketriage.nouns.incident import StepResult

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# a disk, or the host that serves it, gave up
_FAILED = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EREMOTEIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is said of a command that did not end well; `label` introduces what helps."""

    code: str
    exit_code: int
    message: str
    hint: str
    label: str = "hint"


def guard(program: Callable[[], object], argv: Sequence[str]) -> int:
    """Run the program and return its exit code; a failure goes to stderr, as JSON to stdout too."""
    ending = Ending(lambda code: _report(_stopped(code, argv), argv))
    try:
        with ending:
            code = program()
    except SystemExit as stop:
        code = stop.code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last edge
        if ending.code is not None:  # what a signal breaks off calls it what it likes
            return _report(_stopped(ending.code, argv), argv)
        return _report(explain(error, argv), argv)
    code = code if isinstance(code, int) else 0
    if code in (Exit.INTERRUPTED, Exit.TERMINATED):
        return _report(_stopped(code, argv), argv)
    return code


def explain(error: BaseException, argv: Sequence[str]) -> Failure:
    """Say what an error means; one that nobody expected is a bug, whose traceback is kept."""
    if isinstance(error, KeyboardInterrupt):
        return _stopped(Exit.INTERRUPTED, argv)
    if isinstance(error, SpiketriageError):
        code = _kebab(type(error).__name__.removesuffix("Error"))
        return Failure(code=code, exit_code=error.exit_code, message=error.message, hint=error.hint)
    if isinstance(error, typer.TyperException):
        message = error.format_message()
        if message.startswith("No such command"):
            words = []
        else:
            words = _words(argv)
        return Failure(
            code="usage",
            exit_code=Exit.USAGE,
            message=message,
            hint=shlex.join(["spiketriage", *words, "--help"]),
        )
    if isinstance(error, OSError) and error.errno in durable.FULL:
        return explain(durable.disk_full(error.filename), argv)
    if isinstance(error, OSError) and error.errno in _FAILED:
        message = (
            f"{error.filename or 'a file'}: {error.strerror}: its disk failed; what was recorded "
            "before stands"
        )
        return Failure(code="disk-failed", exit_code=Exit.INTEGRITY, message=message, hint="")
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        message = f"no permission for {_place(error)}: {error.strerror}"
        if error.filename:
            hint = f"ls -ld {shlex.quote(_place(error))}"
        else:
            hint = ""
        return Failure(code="forbidden", exit_code=Exit.REFUSED, message=message, hint=hint)
    return _bug(error, argv)


def command_name(argv: Sequence[str]) -> str:
    """Name the command that was typed as schemas do: `rehearse-score`, and `status` for none."""
    return "-".join(_words(argv)) or "status"


def _report(failure: Failure, argv: Sequence[str]) -> int:
    text = printable(failure.message) + "\n"
    if failure.hint:
        text += f"\n{failure.label}: {_pastable(failure.hint)}\n"
    try:
        sys.stderr.write(encodable(text, sys.stderr.encoding))
        sys.stderr.flush()
        if "--json" in argv:
            emit(_as_json(failure, argv))
    except OSError:
        pass  # nobody is left to be told; the exit code still says it
    return failure.exit_code


def _pastable(hint: str) -> str:
    return printable(pastable(hint) if _is_command(hint) else hint)


def _is_command(hint: str) -> bool:
    return hint.startswith("spiketriage ")


def _as_json(failure: Failure, argv: Sequence[str]) -> str:
    next_commands = (failure.hint,) if _is_command(failure.hint) else ()
    result = StepResult(
        incident="",
        exit_code=failure.exit_code,
        verdict="",
        lines=(),
        data={},
        next_commands=next_commands,
    )
    error = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    return envelope(command_name(argv), result, error)


def _stopped(code: int, argv: Sequence[str]) -> Failure:
    again = shlex.join(["spiketriage", *argv])
    if code == Exit.INTERRUPTED:
        what = "interrupted"
    else:
        what = "terminated"
    message = f"{what}; what was finished is recorded, and the same command goes on from there"
    return Failure(code=what, exit_code=code, message=message, hint=again, label="next")


def _bug(error: BaseException, argv: Sequence[str]) -> Failure:
    story = "".join(traceback.format_exception(error))
    header = (
        f"spiketriage {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    )
    header += shlex.join(["spiketriage", *argv]) + "\n\n"
    try:
        handle, path = tempfile.mkstemp(prefix="spiketriage-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(header + story)
    except OSError:
        sys.stderr.write(story)
        path = "stderr, above (no folder for temporary files could be written)"
    name, words = type(error).__name__, str(error).partition("\n")[0]
    message = f"this is a bug in spiketriage: {name}: {words}; the traceback is kept in {path}"
    return Failure(code="bug", exit_code=Exit.BUG, message=message, hint="")


def _words(argv: Sequence[str]) -> list[str]:
    words = [word for word in argv[:1] if re.fullmatch(r"[a-z]+", word)]
    return words + [
        word for word in argv[1:2] if words == ["rehearse"] and word in ("list", "score")
    ]


def _place(error: OSError) -> str:
    return str(error.filename or "standard output")


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
