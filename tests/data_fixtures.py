"""The writers of `fixtures/make_data.py`, and the stores that it made, for the tests of data stores."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
DATA = FIXTURES / "data"
_spec = importlib.util.spec_from_file_location("make_data", FIXTURES / "make_data.py")
assert _spec is not None
assert _spec.loader is not None
make = importlib.util.module_from_spec(_spec)
sys.modules["make_data"] = make
_spec.loader.exec_module(make)
