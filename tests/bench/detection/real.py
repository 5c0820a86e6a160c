"""The corpus' real logs through our own readers, as rows; nothing where the corpus is not there.

Left out as no healthy ones: runs made with a NaN in them, and logs without a loss. `INCIDENTS` are
rows in which a real run did go wrong: a page there is right and is not counted, for anybody.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spiketriage.errors import EvidenceError
from spiketriage.readers.discover import claims_on
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
NAMES = {
    "loss/mean": "loss",
    "grad/norm": "grad_norm",
    "lr": "lr",
    "loss_scale": "loss_scale",
    "loss_scale/skipped": "skipped",
}
# The same run three times, of which the longest is taken; and the runs made for the readers' tests,
# with NaNs.
OTHERS = ("hf_sygoat_ckpt500_", "hf_sygoat_ckpt4500_", "gen_")
# Both are throughput tests with an untuned learning rate: the loss goes from 12 to 22 and to 41
# within three rows.
INCIDENTS = {"meg_base_n4.out": range(0, 10), "meg_ds3d_n16_on.out": range(0, 20)}


def logs(corpus: Path = CORPUS) -> dict[str, list[dict[str, float]]]:
    """Rows by file name."""
    if not corpus.is_dir():
        return {}
    found = {
        path.name: _rows(path)
        for path in sorted(corpus.iterdir())
        if not path.name.startswith(OTHERS)
    }
    return {name: rows for name, rows in found.items() if rows}


def _rows(path: Path) -> list[dict[str, float]]:
    claims = [claim for claim in claims_on(look(path)) if claim.kind == "telemetry"]
    if not claims:
        return []
    try:
        series = claims[0].format.read(path, DEFAULT).series
    except EvidenceError:
        return []
    rows: dict[int, dict[str, float]] = {}
    for one in series:
        name = NAMES.get(one.name, "")
        if not name or not one.trusted:
            continue
        for at, (step, value) in enumerate(
            zip(one.steps.tolist(), one.values.tolist(), strict=True)
        ):
            if np.isfinite(value) or at not in one.reasons:
                rows.setdefault(step, {"step": step})[name] = value
    has_loss = any("loss" in row for row in rows.values())
    return [rows[step] for step in sorted(rows)] if has_loss else []
