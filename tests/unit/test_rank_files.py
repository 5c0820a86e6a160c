"""Files that several ranks saved of one step: replicas that parted, shards, and counters."""

import re
from pathlib import Path

import pytest
import torch

from spiketriage.readers.checkpoints.generations import read_generations

NAMES = ("step_{step}/rank_{rank}.pt", "ckpt_{step}_rank{rank}.pt", "rank{rank}/step-{step}.pt")


class Rank:
    """One rank of a data-parallel run: the same seed and the same data leave the same state."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 4)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
        self.model[2].running_mean += self.rank  # of its own batches

    def save(self, folder: Path, name: str, **changes: object) -> None:
        path = folder / name.format(step=5, rank=self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng_state": torch.Generator().manual_seed(self.rank).get_state(),
            "step": 5,
        }
        torch.save(state | changes, path)


@pytest.fixture
def ranks():
    made = [Rank(rank) for rank in range(3)]
    for rank in made:
        torch.manual_seed(7)
        rank.train(5)
    return made


def save(folder, ranks, name=NAMES[0]):
    for rank in ranks:
        rank.save(folder, name)


def seen(folder):
    """What is said of each rank's file: what cannot be, and the notes."""
    said = {}
    for generation in read_generations(folder, verify=True):
        number = int(re.search(r"rank_?(\d+)", generation.name)[1])
        said[number] = (generation.odd, generation.notes)
    return said


@pytest.mark.parametrize("name", NAMES)
def test_replicas_that_agree_have_nothing_odd(tmp_path, ranks, name):
    save(tmp_path, ranks, name)
    assert seen(tmp_path) == dict.fromkeys(range(3), ((), ()))


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_one_replica_that_differs_is_named_in_the_file_of_that_rank(
    tmp_path, ranks, name
):
    with torch.no_grad():
        ranks[2].model[1].weight[0, 0] += 1e-3
    save(tmp_path, ranks, name)
    said = seen(tmp_path)
    assert said[0] == said[1] == ((), ())
    (text,) = said[2][0]
    assert text.startswith("1.weight: 1 of 6 parameter tensors differ from those of ")
    assert text.endswith("of the same step: replicas that parted (1.weight)")


def test_where_most_tensors_differ_nobody_is_accused_and_both_readings_are_told(tmp_path, ranks):
    with torch.no_grad():
        for parameter in ranks[1].model.parameters():
            parameter.mul_(1.5)
    save(tmp_path, ranks)
    odd, notes = seen(tmp_path)[1]
    assert odd == ()
    assert "shards, or replicas that parted; nothing declares which" in " ".join(notes)


@pytest.mark.parametrize("name", ["step_{step}/mp_rank_0{rank}.pt", "zero-rank{rank}.pt"])
def test_declared_shards_are_not_compared_as_replicas(tmp_path, ranks, name):
    with torch.no_grad():
        ranks[1].model[1].weight[0, 0] += 1e-3
    save(tmp_path, ranks, name)
    odd, notes = seen(tmp_path)[1]
    assert odd == ()
    assert "declares a shard: not compared with other ranks" in " ".join(notes)


def test_shards_of_uneven_size_are_shards(tmp_path):
    for rank, size in ((0, 8), (1, 6)):
        torch.save(
            {"model": {"w": torch.ones(size, 4), "b": torch.ones(4)}, "step": 5},
            tmp_path / f"model_rank{rank}.pt",
        )
    assert all(odd == () for odd, _ in seen(tmp_path).values())
    assert "other tensors or shapes than in model_rank0.pt show a shard" in seen(tmp_path)[1][1][-1]


def test_a_rank_of_another_step_is_named_with_both_steps(tmp_path, ranks):
    ranks[0].save(tmp_path, NAMES[0])
    ranks[1].save(tmp_path, NAMES[0], step=4)
    assert "step: is 4 and 5, and 5 in rank_0.pt, of another rank" in seen(tmp_path)[1][0]


def test_a_scheduler_that_lags_on_one_rank_is_named(tmp_path, ranks):
    state = ranks[1].scheduler.state_dict() | {"last_epoch": 3}
    ranks[0].save(tmp_path, NAMES[0])
    ranks[1].save(tmp_path, NAMES[0], scheduler=state)
    assert any("last_epoch is 3, and 5 in rank_0.pt" in text for text in seen(tmp_path)[1][0])
