"""How the desk starts a child: which interpreter, which environment, and that it ends with us.

No child ever finds the run or the current folder on `sys.path`, and none inherits a variable that
is not on the list: code of the evidence must not run by accident, nor see a secret of the shell.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import spiketriage
from spiketriage import guardian

# What decides how numbers come out, how processes find each other, and where things are installed.
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|XDG_\w+"
    r"|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|HF_HOME|HF_(HUB|DATASETS)_(CACHE|OFFLINE)"
    r"|TRANSFORMERS_(CACHE|OFFLINE)|SPIKETRIAGE_\w+"
    r"|PYTHON(HASHSEED|UTF8|IOENCODING|WARNINGS|DONTWRITEBYTECODE|FAULTHANDLER|NOUSERSITE)"
    r"|(CUDA|NVIDIA|CUBLAS|CUDNN|NCCL|RCCL|GLOO|UCX|FI|OFI|HIP|ROCR|HSA|MIOPEN|TORCH|TORCHINDUCTOR"
    r"|PYTORCH|ATEN|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|ONEDNN|DNNL|TRITON|MALLOC|GLIBC|XLA)_\w+"
)
_LIBRARIES = ("numpy", "torch", "duckdb", "pyarrow", "pydantic", "safetensors", "xxhash", "typer")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def python(*arguments: str) -> list[str]:
    """The command line of our own interpreter, without the current folder on its path."""
    return [sys.executable, "-P", *arguments]


class Guarded(subprocess.Popen[bytes]):
    """A child below a guardian: it and all that it started end with `end`, and with this process.

    The leash is a pipe of which only this process holds the other end: it closes however this
    process ends.
    """

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        leash, self._held = os.pipe()
        guarded = [sys.executable, "-I", "-S", guardian.__file__, str(leash), *command]
        options: dict[str, Any] = {"env": environment(), "stdin": subprocess.DEVNULL, **how}
        try:
            super().__init__(guarded, pass_fds=(leash,), start_new_session=True, **options)
        finally:
            os.close(leash)

    def end(self) -> int:
        """End what has not ended, and say how it did: 128 and its number for a signal."""
        if self.poll() is None:
            self.terminate()  # the guardian, which kills
            self.send_signal(signal.SIGCONT)  # somebody may have stopped it
        self.wait()
        self._let_go()
        return self.returncode

    def leave(self) -> None:
        """Forget it in a fork of the process that it is a child of."""
        self.returncode = 0  # not ours to wait for
        self._let_go()

    def _let_go(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(OSError):  # what is buffered for a process that is gone
                    stream.close()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def environment(**more: str) -> dict[str, str]:
    """The variables that a child is given: those on the list, our import path, and `more`."""
    given = {name: value for name, value in os.environ.items() if is_passed(name)}
    given["PYTHONSAFEPATH"] = "1"  # for what the child starts in its turn
    given["PYTHONPATH"] = os.pathsep.join(import_path(os.environ))
    return given | more


def is_passed(name: str) -> bool:
    """Whether a variable may reach a child."""
    return bool(_PASSED.fullmatch(name)) and not _SECRET.search(name)


def import_path(variables: Mapping[str, str]) -> list[str]:
    """Where this package was imported from, then what of `PYTHONPATH` it needs itself.

    That is where a cluster's modules keep the libraries it was written for. Whatever else the
    operator's shell names is not for children: a trial's modules are what the run's settings say.
    """
    entries = [str(Path(spiketriage.__file__).parent.parent)]
    here = Path.cwd()
    for entry in variables.get("PYTHONPATH", "").split(os.pathsep):
        is_fixed = os.path.isabs(entry) and Path(entry) != here  # elsewhere it may be the run
        if is_fixed and entry not in entries and _holds_a_library(Path(entry)):
            entries.append(entry)
    return entries


def _holds_a_library(folder: Path) -> bool:
    return any((folder / name / "__init__.py").is_file() for name in _LIBRARIES)
