"""What broke the product once, kind by kind, and the project's own tests that now stand against it.

`python tests/reported_attacks.py` runs those tests and prints the table of `docs/`; it holds no
attack of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ATTACKS = ROOT.parent / "shared" / "attacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One kind: the samples of it beside the checkout, what must hold, and the tests that say so."""

    samples: tuple[str, ...]
    kind: str
    tests: tuple[str, ...]


KINDS = (
    Attack(
        samples=("01-pickle-hash-dag", "pickles.py"),
        kind="a pickle that takes hours or all memory costs that file",
        tests=("unit/test_pickles.py", "unit/test_limited.py"),
    ),
    Attack(
        samples=("02-sparse-log-fills-disk", "full.py"),
        kind="no copy fills the disk of the run; on a full disk nothing recorded is lost",
        tests=("unit/test_copies.py", "test_full_disk.py"),
    ),
    Attack(
        samples=("03-verify-blind",),
        kind="every edit of a row, a definition or a byte is found",
        tests=("test_tamper_matrix.py", "unit/test_incident_verify.py"),
    ),
    Attack(
        samples=("04-hostile-view.py",),
        kind="a foreign incident reads no file, runs no view, ends in time",
        tests=("unit/test_incident_hostile.py",),
    ),
    Attack(
        samples=("05-cwd-code-execution",),
        kind="no code of the run is imported by accident, and none without trust",
        tests=(
            "unit/test_children.py",
            "unit/test_trust.py",
            "unit/test_from_source.py",
            "test_asking.py",
        ),
    ),
    Attack(
        samples=("06-stale-wal",),
        kind="a colleague's DuckDB client, working or killed, blocks nobody",
        tests=("unit/test_incident_colleague.py",),
    ),
    Attack(
        samples=("07-alerts",),
        kind="an alert is delivered, or spooled and said so, whatever answers",
        tests=("unit/test_alert_delivery.py",),
    ),
    Attack(
        samples=("08-jsonl-bad-byte",),
        kind="a bad line of a log costs that line",
        tests=("unit/test_bad_lines.py", "unit/test_read_jsonl_bad_lines.py"),
    ),
    Attack(
        samples=("09-copy-collision",),
        kind="no two files of the run share a copy, and no name of it is one of ours",
        tests=("unit/test_copies.py", "unit/test_copies_injective.py"),
    ),
    Attack(
        samples=("10-forged-lines",),
        kind="no foreign word forges a line of the terminal or markup of the report",
        tests=("unit/test_foreign_text.py", "unit/test_report_inert.py"),
    ),
    Attack(
        samples=("12-redos-defenses",),
        kind="no pattern takes longer than the text is long",
        tests=("unit/test_patterns.py",),
    ),
    Attack(
        samples=("13-parquet-abort",),
        kind="a file that ends its reader, or hangs it, costs that file",
        tests=("unit/test_limited.py", "unit/test_hostile_data.py"),
    ),
    Attack(
        samples=("composer-sharded-…", "megatron-dist-…", "fuzz.py"),
        kind="any mutant of any fixture gives facts or one bounded line",
        tests=("fuzz/test_mutants.py", "unit/test_found_by_mutants.py"),
    ),
    Attack(
        samples=("kill.py", "mkrun.py"),
        kind="SIGKILL at any moment loses no row and leaves no worker",
        tests=("unit/test_incident_kill.py", "test_kill.py"),
    ),
    Attack(
        samples=("eio.c",),
        kind="a disk that fails costs a file or a command, never a row",
        tests=("test_disk_errors.py",),
    ),
    Attack(
        samples=("told without a sample",),
        kind="no link and no setting leads out of the run unasked; no credential is copied or shown",
        tests=("unit/test_copies.py", "unit/test_redaction.py"),
    ),
    Attack(
        samples=("told without a sample",),
        kind="a lease that is broken, typed wrongly or from a clock ahead blocks for a minute at most",
        tests=("unit/test_incident_lease.py",),
    ),
    Attack(
        samples=("told without a sample",),
        kind="a file that grows while it is read has an end",
        tests=("unit/test_read_pass.py",),
    ),
)


def main() -> int:
    """Run the tests of every kind once and print what came out; 1 where one failed."""
    files = sorted({name for attack in KINDS for name in attack.tests})
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"),
                *("-o", "junit_family=xunit1", f"--junit-xml={results}"),
                *(f"tests/{name}" for name in files),
            ],
            cwd=ROOT,
            check=False,
            stdout=sys.stderr,
        )
        counts = _counts(results)
    print("| sample | what must hold | tests | outcome |")
    print("|---|---|---|---|")
    num_failed = 0
    for attack in KINDS:
        passed, failed, skipped = (sum(counts[name][i] for name in attack.tests) for i in range(3))
        num_failed += failed
        outcome = f"{passed} passed"
        if failed:
            outcome += f", {failed} FAILED"
        if skipped:
            outcome += f", {skipped} skipped"
        names = ", ".join(f"`{Path(name).name}`" for name in attack.tests)
        print(f"| {', '.join(attack.samples)} | {attack.kind} | {names} | {outcome} |")
    return int(num_failed > 0)


def _counts(results: Path) -> dict[str, list[int]]:
    """Passed, failed and skipped tests by file below `tests/`."""
    counts: dict[str, list[int]] = {}
    for test in ElementTree.parse(results).iter("testcase"):
        name = str(test.get("file")).removeprefix("tests/")
        column = 0
        if test.find("failure") is not None or test.find("error") is not None:
            column = 1
        elif test.find("skipped") is not None:
            column = 2
        counts.setdefault(name, [0, 0, 0])[column] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
