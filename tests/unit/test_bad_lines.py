"""One line of a text log that is no text costs no other line: every reader of text, one harness."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from command_line import ROOT

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.discover import claims_on, kinds
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT

BAD = {
    "bytes that are no UTF-8": b"\xff\xfe garbage \x80",
    "a hole of zeros": bytes(512),
    "half a character": b"n\xc3",
    "half a pair": b"\xed\xa0\x80, 3",
    "colours": b"\x1b[31mx",
    "a quote that never ends": b'"unclosed, 5',
    "a long line": b"x" * 200_000,
    "brackets": b"{" * 5000,
    "nothing": b"",
}


def text_logs() -> dict[str, tuple[ModuleType, Path]]:
    """The smallest log of lines that each reader of telemetry claims best; JSON texts are one."""
    found: dict[str, tuple[ModuleType, Path]] = {}
    paths = [path for path in (ROOT / "fixtures").rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path)):
        claims = claims_on(look(path))
        if not claims or claims[0].kind != "telemetry" or path.suffix == ".json":
            continue
        try:
            num_lines = path.read_bytes().decode().count("\n")
        except UnicodeDecodeError:
            continue
        if num_lines > 1 and b"\0" not in path.read_bytes():
            found.setdefault(claims[0].format.NAME, (claims[0].format, path))  # type: ignore[arg-type]
    return found


LOGS = text_logs()


def points(facts: LogFacts) -> dict[str, list[tuple[int, float]]]:
    return {
        f"{series.name} {series.rank} {series.attempt}": list(
            zip(series.steps.tolist(), map(repr, series.values.tolist()), strict=True)
        )
        for series in facts.series
    }


def test_every_kind_of_text_log_is_tried() -> None:
    names = {member.NAME for member in kinds()["telemetry"]}
    binary = {"tensorboard", "wandb", "trackio", "mlflow", "spiketriage"}
    texts_of_json = {"wandb-summary", "hf-trainer-state", "olmo-metrics"}
    assert names - LOGS.keys() == binary | texts_of_json


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("name", LOGS)
def test_no_other_line_is_lost(name: str, what: str, tmp_path: Path) -> None:
    reader, path = LOGS[name]
    lines = path.read_bytes().split(b"\n")
    at = len(lines) * 2 // 3
    changed = tmp_path / path.name
    changed.write_bytes(b"\n".join([*lines[:at], BAD[what], *lines[at:]]))
    assert points(reader.read(changed, DEFAULT)) == points(reader.read(path, DEFAULT))
