"""The safetensors variants and the HF Trainer checkpoint of the corpus, with values that a person reads off them."""

from pathlib import Path

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.readers.checkpoints.layouts import hf_trainer, safetensors_files

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
VARIANTS = CORPUS / "gen_st"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")

REFUSED = {
    "duplicate_key": "duplicate key 'a'",
    "empty": "expected at least 8 bytes, found 0",
    "header_len_huge": "expected at most 166 bytes, found 9223372036854775808",
    "header_not_json": "expected JSON in UTF-8",
    "header_not_utf8": "can't decode byte 0xff",
    "hole_at_start": "tensor a: expected start at byte 134, found 138",
    "offset_shape_mismatch": "tensor a: expected 32 bytes for F32 [8], found 28 bytes",
    "overlap": "tensor b: expected 8 bytes for BF16 [4], found 32 bytes",
    "reversed_offsets": "tensor a: expected ascending counts",
    "seven_bytes": "expected at least 8 bytes, found 7",
    "shape_overflow": "tensor a: expected 85070591730234615865843651857942052864 bytes",
    "truncated_in_header": "header length: expected at most 56 bytes, found 112",
    "unknown_dtype": "tensor a: expected a known dtype, found 'F99'",
}
READ = {
    "bitflip_in_data": None,
    "good_with_nan_bf16": None,
    "trailing_garbage": "expected 174 bytes, as the header says, found 178: something was added",
    "truncated_tail": "expected 160 bytes, as the header says, found 156: it is cut short in b",
}


def test_every_variant_of_the_corpus_is_read_or_refused_with_its_reason():
    assert {path.stem for path in VARIANTS.iterdir()} == REFUSED.keys() | READ.keys()
    for name, reason in REFUSED.items():
        with pytest.raises(EvidenceError) as caught:
            safetensors_files.read(VARIANTS / f"{name}.safetensors")
        assert reason in caught.value.message
    for name, problem in READ.items():
        facts = safetensors_files.read(VARIANTS / f"{name}.safetensors")
        assert [(one.name, one.dtype, one.shape) for one in facts.tensors] == [
            ("a", "F32", (8,)),
            ("b", "BF16", (4,)),
        ]
        assert facts.complete == (problem is None)
        assert problem is None or problem in facts.problems[0]


def field(facts, name):
    (found,) = [one for one in facts.fields if one.name == name]
    return found


def test_the_checkpoint_of_the_corpus_is_what_a_person_reads_off_it():
    facts = hf_trainer.read(CORPUS / "gen_hf_checkpoint8")
    assert facts.complete
    assert facts.problems == ()
    assert facts.steps_agree
    assert (facts.step, facts.world_size) == (8, 1)
    parameters = {one.name: one.shape for one in facts.tensors if one.role == "parameter"}
    assert len(parameters) == 16
    assert parameters["transformer.wte.weight"] == (64, 16)
    assert sum(one.role == "optimizer" for one in facts.tensors) == 3 * 16
    assert field(facts, "scheduler").values["_last_lr.0"] == "1e-05"
    assert field(facts, "training_args").values["logging_nan_inf_filter"] == "False"
    assert field(facts, "trainer_state.json").values["epoch"] == "0.5"
