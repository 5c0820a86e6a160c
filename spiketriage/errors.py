"""Every error that spiketriage raises on purpose, with its exit code and a hint to paste.

This module never imports anything of the project: it is the lowest layer.

    SpiketriageError
    ├── UsageError           2   the command line or a settings file is wrong
    ├── RefusedError         3   a precondition is missing
    ├── EvidenceError        4   evidence is missing, corrupt, or changed since the freeze
    │   ├── CorruptFileError     a file is not what its format says
    │   │   └── CutArchiveError  the end of an archive is gone, and its directory with it
    │   └── JournalError         the incident's journal chain is broken
    ├── InconclusiveError    5   too few valid trials, or noise exceeds the effect
    ├── PartialError         6   kept what could be kept; the manifest lists the gaps
    ├── TrialError           7   a child process (trial, launcher, rehearsal) failed
    ├── AgreementError       7   the ranks of a job cannot agree: one is silent, or they parted
    ├── BusyError            8   somebody else holds the incident's lease
    └── GuardStopError      10   the guard stopped a training job: do not restart it, look at it
"""

from __future__ import annotations


class SpiketriageError(Exception):
    """Root of the hierarchy: a sentence for a tired person, a hint, an exit code."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SpiketriageError):
    """The command line or a settings file asks for something that does not exist."""

    exit_code = 2


class RefusedError(SpiketriageError):
    """A precondition is missing (nothing frozen, no known-good generation, two factors at once)."""

    exit_code = 3


class EvidenceError(SpiketriageError):
    """Evidence is missing, unreadable, corrupt, or no longer what it was when it was frozen."""

    exit_code = 4


class CorruptFileError(EvidenceError):
    """A file is not what its format says: what, where, expected, seen."""

    def __init__(
        self, path: object, where: str, *, expected: object, seen: object, hint: str = ""
    ) -> None:
        super().__init__(
            f"{path}: {where}: expected {expected}, found {_one_line(seen)}", hint=hint
        )
        self.path = str(path)


def _one_line(seen: object) -> str:
    """What a file holds may hold anything.

    A line break or a control character is shown as its escape.
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(seen))


class CutArchiveError(CorruptFileError):
    """The end of an archive is gone, and its directory with it.

    What lies before the cut can still be saved.
    """


class JournalError(EvidenceError):
    """A row of the incident's journal no longer matches the chain."""


class InconclusiveError(SpiketriageError):
    """The measurement is valid but does not decide."""

    exit_code = 5


class PartialError(SpiketriageError):
    """Part of the work is kept; what is missing is named."""

    exit_code = 6


class TrialError(SpiketriageError):
    """A child process failed; its log is kept and named."""

    exit_code = 7


class BusyError(SpiketriageError):
    """Another process holds the incident's lease."""

    exit_code = 8


class AgreementError(SpiketriageError):
    """The ranks of a training job cannot agree.

    One did not answer, or they are not where they should be.
    """

    exit_code = 7  # a peer process failed


class GuardStopError(SpiketriageError):
    """The guard stopped the training job.

    The same verdict came again and again without progress, or policy says so.
    """

    # Its own, so that a supervisor does not restart what would only stop again. Not 9: Slurm's
    # `9:0` and `0:9`, and wrappers that print status and signal alike, would make people take it
    # for SIGKILL and for lack of memory.
    exit_code = 10
