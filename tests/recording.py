"""What tests of the recorder share; it never records anything by itself."""

from __future__ import annotations

from pathlib import Path

from spiketriage.nouns.telemetry import Identity

ROOT = Path(__file__).parents[1]
IDENTITY = Identity(
    world_size=2,
    host="node-0",
    device="cpu",
    num_threads=1,
    precision="bf16",
    kernel="fused",
    deterministic=True,
    code_path="code/r1",
    code_digest="0" * 32,
    config_digest="1" * 32,
    hparams={"clip": 1.0},
)
