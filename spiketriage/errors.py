"""Every error that spiketriage raises on purpose, with its exit code and a hint to paste.

This module never imports more of the project than how a foreign word is shown.

    SpiketriageError
    ├── UsageError           2   the command line or a settings file is wrong
    │   └── StepNotTakenError    a job's loop ended before the step that a trial asked of it
    ├── RefusedError         3   a precondition is missing
    │   └── NotTrustedError      code of the run would have to be imported, and nobody trusts it
    ├── EvidenceError        4   evidence is missing, corrupt, or changed since the freeze
    │   ├── CorruptFileError     a file is not what its format says
    │   │   └── CutArchiveError  the end of an archive is gone, and its directory with it
    │   └── NoRoomError          a copy would take more than the disk can spare
    ├── PartialError         6   kept what could be kept; the manifest lists the gaps
    │   └── DiskFullError        the disk took no more
    ├── TrialError           7   a child process (trial, launcher, rehearsal) failed
    ├── AgreementError       7   the ranks of a job cannot agree: one is silent, or they parted
    ├── BusyError            8   somebody else holds the incident's lease
    └── GuardStopError      10   the guard stopped a training job: do not restart it, look at it
"""

from __future__ import annotations

from enum import IntEnum

from spiketriage.foreign_text import printable

MAX_MESSAGE_CHARS = 1200  # a name of a file in somebody's index can be as long as the index
MAX_SEEN_CHARS = 500  # of what a file holds in place of what it should


class Exit(IntEnum):
    """How a command ends, for the shell and for the journal.

    Never 9 (Slurm's `9:0` and `0:9`, and wrappers that print status and signal alike, would make
    people take it for SIGKILL and for lack of memory), 16, 17, or 125 to 128 (containers and shells
    say those themselves).
    """

    DONE = 0  # or: what was asked holds
    AGAINST = 1  # it ran, and found something against the run
    USAGE = 2
    REFUSED = 3
    INTEGRITY = 4
    INCONCLUSIVE = 5
    PARTIAL = 6
    CHILD_FAILED = 7
    BUSY = 8
    GUARD_STOP = 10
    BUG = 70
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it
    TERMINATED = 143  # 128 + SIGTERM


class SpiketriageError(Exception):
    """Root of the hierarchy: a sentence for a tired person, a hint, an exit code."""

    exit_code = Exit.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(message)
        if len(self.message) > MAX_MESSAGE_CHARS:
            self.message = f"{self.message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(self.message)
        self.hint = hint


class UsageError(SpiketriageError):
    """The command line or a settings file asks for something that does not exist."""

    exit_code = Exit.USAGE


class StepNotTakenError(UsageError):
    """A job's own loop ended before it had taken the step that was asked of it."""


class RefusedError(SpiketriageError):
    """A precondition is missing (nothing frozen, no known-good generation, two factors at once)."""

    exit_code = Exit.REFUSED


class NotTrustedError(RefusedError):
    """The code of a run would have to be imported, and this user never said that it may be."""


class EvidenceError(SpiketriageError):
    """Evidence is missing, unreadable, corrupt, or no longer what it was when it was frozen."""

    exit_code = Exit.INTEGRITY


class CorruptFileError(EvidenceError):
    """A file is not what its format says: what, where, expected, seen."""

    def __init__(
        self, path: object, where: str, *, expected: object, seen: object, hint: str = ""
    ) -> None:
        shown = printable(seen)
        if len(shown) > MAX_SEEN_CHARS:
            shown = f"{shown[:MAX_SEEN_CHARS]}…"
        super().__init__(f"{path}: {where}: expected {expected}, found {shown}", hint=hint)
        self.path = str(path)


class CutArchiveError(CorruptFileError):
    """The end of an archive is gone, and its directory with it; what lies before can be saved."""


class NoRoomError(EvidenceError):
    """A copy that would take more than a disk can spare, or than is ever copied; none was made."""


class PartialError(SpiketriageError):
    """Part of the work is kept; what is missing is named."""

    exit_code = Exit.PARTIAL


class DiskFullError(PartialError):
    """A disk took no more, or a quota or a limit of the file's size did not let it."""


class TrialError(SpiketriageError):
    """A child process failed; its log is kept and named."""

    exit_code = Exit.CHILD_FAILED


class BusyError(SpiketriageError):
    """Another process holds the incident's lease."""

    exit_code = Exit.BUSY


class AgreementError(SpiketriageError):
    """The ranks of a training job cannot agree: one is silent, or they have parted."""

    exit_code = Exit.CHILD_FAILED  # a peer process failed


class GuardStopError(SpiketriageError):
    """The guard stopped the training job: no progress, again and again, or policy says so."""

    # Its own, so that a supervisor does not restart what would only stop again.
    exit_code = Exit.GUARD_STOP
