"""Root causes: a table a class, their predictions as data; `CAUSES` has them all.

Nothing here weighs a finding.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.causes.data import DATA
from spiketriage.diagnosis.causes.numerics import NUMERICS
from spiketriage.diagnosis.causes.optimization import OPTIMIZATION
from spiketriage.diagnosis.causes.systems import SYSTEMS

CAUSES: tuple[Cause, ...] = (*DATA, *OPTIMIZATION, *NUMERICS, *SYSTEMS)
