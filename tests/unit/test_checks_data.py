"""Checks of what was consumed.

Content, ids, the mix of sources, and the look of bytes on real shards.
"""

from __future__ import annotations

import random
import string
from dataclasses import replace

import pytest
from synthetic_view import SyntheticRun, only, raw

from spiketriage.diagnosis.checks import composition, consumed_content, content_profile, ids
from spiketriage.nouns.data import Document

SEEDS = range(6)
SUSPECT = 61


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_that_are_not_those_of_the_index_are_named(seed):
    draw = random.Random(seed)
    run, step, rank = SyntheticRun(), draw.randint(1, 80), draw.randint(0, 1)
    content = dict(run.record(rank, step).content)
    name = draw.choice(sorted(content))
    run.change(rank, step, content={**content, name: raw("rotten").hex()})
    found = only(consumed_content.run(run.view()), "consumed-content")
    assert (found.outcome, found.where.step, found.where.rank, found.where.key) == (
        "differs",
        step,
        rank,
        name,
    )
    assert (found.where.path, found.magnitude) == (run.documents[name].shard, 1)


def test_a_changed_index_leaves_the_content_untested():
    run = SyntheticRun()
    run.index_digest = "rewritten"
    found = only(consumed_content.run(run.view()), "consumed-content")
    assert found.outcome == "not testable"
    assert "step-000020" in found.summary


@pytest.mark.parametrize(
    ("rank", "step", "names", "key", "seen"),
    [
        (0, 30, ["doc-232", "ghost"], "ghost", "not in the index"),
        (1, 30, ["doc-236", "doc-236"], "doc-236", "twice by this rank"),
        (1, 30, ["doc-236", "doc-232"], "doc-232", "by rank 0 as well"),
        (0, 70, ["doc-552", "doc-239"], "doc-239", "after step 30 on rank 1"),
    ],
)
def test_unknown_and_repeated_documents_are_named(rank, step, names, key, seen):
    run = SyntheticRun()
    run.use(rank, step, names)
    if names[-1] == "ghost":
        run.change(rank, step, content={})
    found = only(ids.run(run.view()), "ids")
    assert (found.outcome, found.where.step, found.where.rank, found.where.key) == (
        "differs",
        step,
        rank,
        key,
    )
    assert seen in found.summary


def test_a_cursor_that_is_set_back_repeats_every_document_from_then_on():
    run = SyntheticRun()
    for step in range(41, 81):
        for rank in (0, 1):
            run.use(rank, step, run.record(rank, step - 15).content)
    found = only(ids.run(run.view()), "ids")
    assert (found.outcome, found.where.step) == ("differs", 41)
    assert "after step 26 on rank 0" in found.summary


def test_a_second_epoch_and_drawing_with_replacement_are_no_fault():
    run = SyntheticRun()
    half = 40 * 8
    run.documents = {name: d for name, d in run.documents.items() if int(name[4:]) < half}
    for step in range(41, 81):
        for rank in (0, 1):
            run.use(rank, step, run.record(rank, step - 40).content)
    assert only(ids.run(run.view()), "ids").outcome == "agrees"
    draw, replaced = random.Random(5), SyntheticRun()
    for step in range(1, 81):
        for rank in (0, 1):
            replaced.use(rank, step, [f"doc-{draw.randrange(640)}" for _ in range(4)])
    assert only(ids.run(replaced.view()), "ids").outcome == "not testable"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_full_of_a_rare_source_is_unusual_and_other_steps_are_not(seed):
    draw, run = random.Random(seed), SyntheticRun()
    step = draw.randint(41, 79)
    rare = [name for name, document in run.documents.items() if document.source == "rare"]
    for rank in (0, 1):
        run.use(rank, step, draw.sample(rare, 4))
    found = only(composition.run(run.view(suspect=step)), "composition")
    assert (found.outcome, found.where.step, found.where.key) == ("differs", step, "rare")
    assert "100% of its bytes come from source rare" in found.summary
    assert f"0 of {80 - step} later step" in found.summary
    usual = only(composition.run(run.view(suspect=step - 1)), "composition")
    assert usual.outcome == "agrees"


def test_composition_needs_a_suspect_an_index_and_enough_steps():
    run = SyntheticRun()
    assert only(composition.run(run.view()), "composition").summary == "no suspect step"
    assert (
        only(composition.run(run.view(suspect=50, index=False)), "composition").outcome
        == "not testable"
    )
    short = SyntheticRun()
    short.steps = {key: record for key, record in short.steps.items() if 30 < key[2] < 50}
    found = only(composition.run(short.view(suspect=45)), "composition")
    assert (found.outcome, found.summary) == ("not testable", "only 18 other steps to compare with")


# --- the look of the bytes, on real shards


@pytest.mark.parametrize("seed", SEEDS)
def test_clean_documents_agree_with_their_source_rare_ones_too(tmp_path, seed):
    run = _run_with_shards(tmp_path, seed)
    assert _profile(run).outcome == "agrees"
    rare = [name for name, document in run.documents.items() if document.source == "rare"]
    for rank in (0, 1):
        run.use(rank, SUSPECT, rare[4 * rank : 4 * rank + 4])
    assert _profile(run).outcome == "agrees"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("garbage", ["random", "repeated", "permuted", "binary"])
def test_garbage_under_a_source_s_label_is_found_on_its_rank(tmp_path, seed, garbage):
    draw = random.Random(seed)
    run, rank = _run_with_shards(tmp_path, seed), draw.randint(0, 1)
    table = bytes(draw.sample(range(256), 256))
    for name in run.record(rank, SUSPECT).content:
        document = run.documents[name]
        text = _read(tmp_path, document)
        bad = {
            "random": draw.randbytes(len(text)),
            "repeated": table[:1] * len(text),
            "permuted": text.translate(table),
            "binary": bytes(200 + draw.randrange(40) for _ in text),
        }[garbage]
        _write(tmp_path, document, bad)
    found = _profile(run)
    assert (found.outcome, found.where.step, found.where.rank) == ("differs", SUSPECT, rank)
    assert found.where.key in run.record(rank, SUSPECT).content
    assert found.magnitude > 1


def test_too_few_bytes_are_pooled_or_left_out_and_said_so(tmp_path):
    run = _run_with_shards(tmp_path, 1)
    names = sorted(run.record(0, SUSPECT).content)[:1]
    for name in names:
        run.documents[name] = replace(run.documents[name], length_bytes=10)
    run.use(0, SUSPECT, names)
    run.use(1, SUSPECT, [])
    run.change(1, SUSPECT, ids=[], content={})
    found = _profile(run)
    assert found.outcome == "not testable"
    assert "10 bytes are too few" in found.summary


def test_a_missing_shard_is_said_and_no_crash(tmp_path):
    run = _run_with_shards(tmp_path, 1)
    (tmp_path / "shard-0.bin").unlink()
    found = _profile(run)
    assert found.outcome == "not testable"
    assert "shard-0.bin" in found.summary


def _profile(run: SyntheticRun):
    return only(content_profile.run(run.view(suspect=SUSPECT)), "content-profile")


def _run_with_shards(folder, seed: int) -> SyntheticRun:
    """Shards with text of four kinds, each with an alphabet and words of its own."""
    draw, run = random.Random(1000 + seed), SyntheticRun()
    run.index_path = folder / "index.json"
    words = {
        source: ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(150)]
        for source, letters in {
            "prose": string.ascii_lowercase,
            "code": string.ascii_lowercase + "_=()",
            "law": string.ascii_letters,
            "rare": string.digits + ";",
        }.items()
    }
    shards = {f"shard-{n}.bin": bytearray() for n in range(3)}
    for name, document in run.documents.items():
        text = " ".join(draw.choices(words[document.source], k=20))[: draw.randint(24, 63)].encode()
        shard = shards[document.shard]
        run.documents[name] = replace(document, offset_bytes=len(shard), length_bytes=len(text))
        shard += text
    for name, shard in shards.items():
        (folder / name).write_bytes(shard)
    return run


def _read(folder, document: Document) -> bytes:
    data = (folder / document.shard).read_bytes()
    return data[document.offset_bytes : document.offset_bytes + document.length_bytes]


def _write(folder, document: Document, text: bytes) -> None:
    data = bytearray((folder / document.shard).read_bytes())
    data[document.offset_bytes : document.offset_bytes + document.length_bytes] = text
    (folder / document.shard).write_bytes(data)
