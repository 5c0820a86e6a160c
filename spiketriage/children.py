"""How the desk starts a child: which interpreter, which environment, and that it ends with us.

No child ever finds the run or the current folder on `sys.path`, and none inherits a variable that
is not on the list: code of the evidence must not run by accident, nor see a secret of the shell.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

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
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def python(*arguments: str) -> list[str]:
    """The command line of our own interpreter, without the current folder on its path."""
    return [sys.executable, "-P", *arguments]


def guarded(command: list[str]) -> list[str]:
    """`command` below a guardian: with its standard input, all that it started ends."""
    return [sys.executable, "-I", "-S", guardian.__file__, *command]


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
    """Where this package was imported from, then what `PYTHONPATH` names for good.

    A relative or empty entry is whatever the current folder is, and the current folder may be the
    run: neither is passed on.
    """
    home = str(Path(spiketriage.__file__).parent.parent)
    entries = [home]
    here = Path.cwd()
    for entry in variables.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.isabs(entry) and Path(entry) != here and entry not in entries:
            entries.append(entry)
    return entries
