"""The telemetry formats that can be read, in order of precedence.

This module never opens a file: each format has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Format
from spiketriage.readers.telemetry.consoles import (
    composer_stdout,
    deepspeed_stdout,
    general_text,
    hf_stdout,
    litgpt_stdout,
    llmc_log,
    megatron_reruns,
    megatron_stdout,
    modded_nanogpt,
    nanogpt_stdout,
    nanotron_stdout,
    olmo_stdout,
    torchtitan_golden,
    torchtitan_stdout,
)
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.stores import (
    mlflow_store,
    native,
    tensorboard,
    trackio_store,
    wandb_file,
    wandb_summary,
)
from spiketriage.readers.telemetry.tables import (
    csv_file,
    deepspeed_csv,
    hf_trainer_state,
    jsonl,
    lightning_csv,
    olmo_metrics,
)


class LogFormat(Format, Protocol):
    """A telemetry format."""

    def read(self, path: Path, names: Names, /) -> LogFacts:
        """Every series of the source; what is damaged is in `problems`.

        Raises:
            EvidenceError: the source cannot be read at all, or is not of this format.
        """
        ...


FORMATS: tuple[LogFormat, ...] = cast(
    "tuple[LogFormat, ...]",
    (
        native,
        tensorboard,
        wandb_file,
        wandb_summary,
        hf_trainer_state,
        mlflow_store,
        trackio_store,
        lightning_csv,
        deepspeed_csv,
        olmo_metrics,
        megatron_reruns,
        llmc_log,
        megatron_stdout,
        torchtitan_stdout,
        nanotron_stdout,
        olmo_stdout,
        composer_stdout,
        modded_nanogpt,
        nanogpt_stdout,
        litgpt_stdout,
        hf_stdout,
        torchtitan_golden,
        deepspeed_stdout,
        jsonl,
        csv_file,
        general_text,
    ),
)
