"""Imports all of `spiketriage.train`, then records, guards, saves and loads twenty steps.

Started with `python -I -S`.

`bare_loop.py SITE FOLDER ABSENT…` takes every distribution from SITE and prints what it saw as
JSON.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

FRAMEWORKS = (
    "transformers",
    "accelerate",
    "lightning",
)  # an adapter may need its own, and nothing else
NUM_STEPS, BAD_STEP = 20, 13


def import_all() -> list[str]:
    """Names of all modules of the training side, imported.

    Adapters whose framework is not here as well.
    """
    import spiketriage.train as train

    names = [train.__name__]
    for module in pkgutil.walk_packages(train.__path__, f"{train.__name__}."):
        names.append(module.name)
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            framework = (error.name or "").split(".")[0]
            if framework not in FRAMEWORKS or not module.name.startswith(
                f"{train.__name__}.adapters."
            ):
                raise
    return names


def absent(names: list[str]) -> list[str]:
    """Which of `names` cannot be imported."""
    gone = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            gone.append(name)
    return gone


def train(folder: Path) -> dict[str, Any]:
    """Twenty steps, the thirteenth with a NaN loss, and a generation of the last one, loaded into zeroed parameters."""
    import torch

    from spiketriage.nouns.telemetry import Identity
    from spiketriage.train.guarding.guard import Guard, Policy
    from spiketriage.train.recording.layers import LayerStatistics
    from spiketriage.train.recording.observer import Observer
    from spiketriage.train.recording.recorder import Recorder

    torch.manual_seed(0)
    torch.set_num_threads(1)
    about = {"host": "bare", "device": "cpu", "precision": "fp32", "kernel": "math"}
    code = {"code_path": "", "code_digest": "", "config_digest": ""}
    identity = Identity(world_size=1, num_threads=1, deterministic=True, **about, **code)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard, actions = Guard(Policy(nonfinite="skip")), []
    with Recorder(
        folder / "telemetry", rank=0, identity=identity, budget_share=None, patience_s=60
    ) as recorder:
        observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
        layers = LayerStatistics({"first": model[0], "last": model[2]}, recorder)
        for number in range(1, NUM_STEPS + 1):
            with recorder.step(number) as step:
                step.capture(number)
                step.tokens(torch.arange(8).view(2, 4) + number)
                observer.begin(step)
                loss = model(torch.randn(16, 4)).square().sum() * (
                    float("nan") if number == BAD_STEP else 1.0
                )
                loss.backward()
                layers.record(step)
                norm = observer.reduced_gradients(step)
                decision = guard.decide(
                    step=number, loss_sum=loss.detach(), num_tokens=16, grad_norm=norm, lr=1e-2
                )
                if not decision.skip:
                    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
                    optimizer.step()
                observer.updated(step)
                step.log({"loss/sum": loss.detach(), **decision.metrics()})
                optimizer.zero_grad()
                actions.append(decision.action)
    is_same = saved_and_loaded(folder / "checkpoints", model, optimizer, guard)
    return {"actions": actions, "is_same": is_same, "segment": str(recorder.path)}


def saved_and_loaded(checkpoints: Path, model: Any, optimizer: Any, guard: Any) -> bool:
    """Whether parameters, moments and the guard's state come back from a generation as they were."""
    from spiketriage.train.generations.generation import Provenance, load_verified, save
    from spiketriage.train.generations.module_state import capture, put
    from spiketriage.train.generations.rank_state import RankState, digest_state
    from spiketriage.train.recording import random_state

    def state_now() -> RankState:
        held = capture(model, optimizer)
        return RankState(
            params=held.params,
            optimizer=held.optimizer,
            buffers=held.buffers,
            scheduler={},
            guard=guard.state(),
            rng=random_state.saved(),
            cursor={"position": NUM_STEPS},
            num_tokens=16 * NUM_STEPS,
        )

    code = {"code_path": "", "code_digest": "", "config_digest": "", "index_digest": ""}
    before = digest_state(state_now())
    folder = save(
        checkpoints,
        step=NUM_STEPS,
        state=state_now(),
        provenance=Provenance(hparams={}, schedule={}, **code),
    )
    for one in (
        *model.parameters(),
        *(value for state in optimizer.state.values() for value in state.values()),
    ):
        one.detach().zero_()
    was_changed = digest_state(state_now()) != before
    loaded = load_verified(folder, dict(model.named_parameters()))
    put(loaded, model, optimizer)
    guard.restore(loaded.guard)
    return was_changed and digest_state(state_now()) == before


def main() -> None:
    """Print what was seen."""
    site, folder, *unwanted = sys.argv[1:]
    sys.path.insert(0, site)
    seen = {"absent": absent(unwanted), "imported": import_all(), **train(Path(folder))}
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    print(json.dumps({**seen, "files": files}))


if __name__ == "__main__":
    main()
