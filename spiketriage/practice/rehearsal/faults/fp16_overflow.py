"""The code of the restart keeps one layer in fp16 and grows the loss scale without a check.

The first gradient beyond 65,504 becomes infinite, and the weights NaN; the same step in fp32 is
finite.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "fp16-overflow"
CAUSE = "fp16-overflow"
ABOUT = "fp16 with a loss scale that grows without an overflow check"


def plant(stage: Staging) -> None:
    """Choose the layer, and the exponent from which the scale doubles every step."""
    layer = stage.chooser.randrange(stage.config.num_layers)
    place = f"blocks.{layer}.{stage.chooser.choice(('up', 'down', 'out'))}"
    exponent = stage.chooser.randint(8, 16)
    stage.edit_code(
        "precision.py",
        "    return values.to(torch.bfloat16).to(torch.float32)\n",
        f'    if place == "{place}":\n'
        "        return values.to(torch.float16).to(torch.float32)\n"
        "    return values.to(torch.bfloat16).to(torch.float32)\n",
    )
    stage.edit_code(
        "precision.py",
        "    return 1.0\n",
        (
            f'    return 1.0 if precision == "fp32" else 2.0 ** ({exponent} + step - '
            f"{stage.restart_step})\n"
        ),
    )
