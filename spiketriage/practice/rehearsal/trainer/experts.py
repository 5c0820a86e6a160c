"""A mixture of experts in the width of one dense MLP: a router, its balancing bias and its z-loss.

It never drops a token and saves no time: every expert is computed, and the gate of those not chosen
is 0.
"""

# B rows, T positions, N tokens of a microbatch, D model width, F hidden width of all experts, E
# experts, C chosen ones, K hidden width of one expert.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spiketriage.train.recording.expert_signals import record_router
from spiketriage.train.recording.step_recorder import StepRecorder
from spiketriage.train.stabilizers.moe import BalanceBias, load, router_z_loss_sum

from .config import Config
from .passes import Routed, Trace
from .widths import Readout

NUM_EXPERTS, NUM_CHOSEN = 4, 2
Z_COEFFICIENT = 1e-3  # ST-MoE, arXiv 2202.08906, section 4


class Mixture(nn.Module):
    """Gates on the hidden features of an MLP, of which each expert has an equal share.

    Rows of the up-projection and columns of the down-projection belong to one expert, so that the
    gated sum over experts is the down-projection of the gated features.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.router = Readout(config, NUM_EXPERTS)
        self.balance = BalanceBias(NUM_EXPERTS)

    def forward(
        self, hidden_BTF: Tensor, inputs_BTD: Tensor, valid_BT: Tensor, trace: Trace
    ) -> Tensor:
        """Hidden features times their expert's gate; the router reads the MLP's input, in fp32."""
        logits_NE = self.router(inputs_BTD).flatten(0, 1)
        routing = self.balance.route(logits_NE, valid_BT.flatten(), NUM_CHOSEN)
        trace.routed.append(Routed(logits_NE=logits_NE, routing=routing))
        gate_NE = torch.zeros_like(logits_NE).scatter(-1, routing.expert_NC, routing.gate_NC)
        hidden_NEK = hidden_BTF.reshape(*gate_NE.shape, -1)
        return (hidden_NEK * gate_NE[..., None]).view(hidden_BTF.shape)


def router_penalty(trace: Trace) -> Tensor | float:
    """Weighted z-loss of all routers, summed over tokens as the loss is; 0 without experts."""
    total: Tensor | float = 0.0
    for routed in trace.routed:
        total = total + router_z_loss_sum(routed.logits_NE, routed.routing.valid_N)[0]
    return Z_COEFFICIENT * total


def record_routers(
    mixtures: Sequence[Mixture], traces: Sequence[Trace], record: StepRecorder
) -> None:
    """Load, entropies and bias of every layer over all microbatches of this rank's step."""
    for layer, mixture in enumerate(mixtures):
        routed = [trace.routed[layer] for trace in traces]
        record_router(
            record,
            torch.cat([micro.logits_NE for micro in routed]),
            torch.cat([micro.routing.expert_NC for micro in routed]),
            valid_N=torch.cat([micro.routing.valid_N for micro in routed]),
            bias_E=mixture.balance.bias_E,
            is_sigmoid=True,
        )


def balance(mixtures: Sequence[Mixture], traces: Sequence[Trace]) -> None:
    """Move every bias once, by the load of all ranks in a step that was taken; collective."""
    for layer, mixture in enumerate(mixtures):
        loads = [load(trace.routed[layer].routing, NUM_EXPERTS) for trace in traces]
        mixture.balance.update(torch.stack(loads).sum(0))
