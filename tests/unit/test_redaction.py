"""Credentials stay behind: in configurations by the name of their key, in any text by their shape."""

from __future__ import annotations

import hashlib
import json
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
import xxhash
from command_line import call
from hypothesis import given
from hypothesis import strategies as st
from run_folder import write_run

from spiketriage import redaction
from spiketriage.errors import UsageError
from spiketriage.evidence import config_text, layout, redacting
from spiketriage.incident import store
from spiketriage.readers.events.folder import read_events
from spiketriage.runbook import check, freeze, hash

ALNUM = string.ascii_letters + string.digits
# made up here, with the prefix and the length of real ones
OF_HF, OF_AWS, OF_GITHUB = "hf_" + "aB3" * 11, "AKIA" + "Q7" * 8, "ghp_" + "x9Y" * 12
OF_OPENAI, OF_WANDB = "sk-proj-" + "Ab1_" * 10, "0f" * 20
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{'MIIE' * 400}\n-----END RSA PRIVATE KEY-----\n"


def marked(value: str) -> str:
    return "redacted-sha256-" + hashlib.sha256(value.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"wandb_api_key": "abc", "lr": 0.1}', ["abc"]),
        ('{"a": {"PASSWORD":"a\\"b"}, "hub-token": "x"}', ['a\\"b', "x"]),
        ('{"auth": {"client_secret": 1234}}', ["1234"]),
        (
            '{"routing_key": "abc", "sort_key": "x", "webhook_url": "https://a/b"}',
            ["abc", "https://a/b"],
        ),
        ("password: hunter2 # of the database\nlr: 1\n", ["hunter2"]),
        ("db: {user: me, password: two words, port: 5}", ["two words"]),
        ("secret: |\n  one\n  two\nnext: 1\n", ["|\n  one\n  two"]),
        ("password = two words\nlr = 1\n", ["two words"]),
        ("api_key = 'abc'\n", ["abc"]),
        ('secret = """\none\ntwo"""\nlr = 1\n', ["\none\ntwo"]),
        ("WANDB_API_KEY=abc python train.py --lr 3\n", ["abc"]),
        ("python train.py --hub-token abc --api_key=def --lr 3", ["abc", "def"]),
        ('{"args": ["--api-key", "abc", "--lr", "3"]}', ["abc"]),
        ('{"env": {"AWS_SECRET_ACCESS_KEY": "a/b+c"}}', ["a/b+c"]),
        ("endpoint: https://me:secretly@host/x\n", ["secretly"]),
        (f"notes: see {OF_AWS}\n", [OF_AWS]),
    ],
)
def test_what_a_telling_key_holds_has_a_digest_in_its_place(text: str, values: list[str]) -> None:
    expected = text
    for value in values:
        expected = expected.replace(value, marked(value), 1)
    redacted = config_text.redacted(text)
    assert redacted.text.replace('"', "") == expected.replace('"', "")
    assert redacted.num_values == len(values)


@pytest.mark.parametrize(
    "text",
    [
        '{"max_tokens": 5, "tokenizer": "gpt2", "eos_token": "<eos>", "pad_token_id": 0}',
        '{"token": null, "use_auth_token": true, "tokens_per_step": 4096, "accept_token": 0.3}',
        "password: ${DB_PASSWORD}\nsecret_file: /run/secrets/a\n",
        "api_key = os.environ['WANDB_API_KEY']\n",
        "words: [token, password]\nsecret:\nlr: 1\n",
        "commit 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\nhttps://host:8080/x@y\n",
    ],
)
def test_what_only_sounds_like_a_credential_stays(text: str) -> None:
    assert config_text.redacted(text) == redaction.Redacted(text=text, num_values=0)


SECRETS = st.text(ALNUM + " /+=-_.:,#'\"\\{}[]\né", min_size=1, max_size=40).filter(
    lambda value: len(value.strip()) > 8
)
KEYS = st.sampled_from(["password", "api_key", "wandb.api-key", "HF_TOKEN", "clientSecret"])
PLAIN = st.dictionaries(
    st.sampled_from(["lr", "tokens", "model", "seed"]),
    st.integers() | st.booleans() | st.text(string.ascii_lowercase, max_size=9),
)


@given(key=KEYS, secret=SECRETS, plain=PLAIN, indent=st.sampled_from([None, 1]))
def test_json_stays_json_and_holds_everything_but_the_secret(
    key: str, secret: str, plain: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps({"run": plain, "sub": {key: secret, "x": [1]}, "end": 1}, indent=indent)
    read = json.loads(config_text.redacted(text).text)
    assert read["run"] == plain
    assert read["end"] == 1
    assert read["sub"]["x"] == [1]
    assert read["sub"][key].startswith("redacted-sha256-")


@given(
    key=st.sampled_from(["password", "api_key", "secret"]),
    secret=SECRETS | st.integers() | st.lists(st.integers(), min_size=1),
)
def test_toml_stays_toml(key: str, secret: str | int | list[int]) -> None:
    text = f"lr = 1\n{key} = {json.dumps(secret)}\n[data]\nseed = 2\n"
    read = tomllib.loads(config_text.redacted(text).text)
    assert (read["lr"], read["data"]) == (1, {"seed": 2})
    assert read[key].startswith("redacted-sha256-")


@given(st.text(ALNUM + " /+=-_.:,#'\"\\{}[]\n|>&$", max_size=200))
def test_what_was_redacted_has_nothing_left_to_redact(text: str) -> None:
    once = config_text.redacted(f"password: {text}\ntoken={text}")
    assert config_text.redacted(once.text).text == once.text


@pytest.mark.parametrize("value", [OF_HF, OF_AWS, OF_GITHUB, OF_OPENAI])
def test_a_telling_shape_is_found_in_any_text(value: str) -> None:
    line = f"12:00 INFO calling with ({value}), step 3"
    assert redaction.shapes(line).text == line.replace(value, marked(value))
    assert redaction.shapes(f"x{value}").num_values == 0


def test_the_words_beside_a_key_tell_its_shape() -> None:
    text = f"$ wandb login {OF_WANDB}\nAuthorization: Bearer abcdefghijklmnop\ncommit {OF_WANDB}\n"
    assert redaction.shapes(text).text == (
        f"$ wandb login {marked(OF_WANDB)}\nAuthorization: Bearer {marked('abcdefghijklmnop')}\n"
        f"commit {OF_WANDB}\n"
    )


def test_settings_keep_their_sections_and_types() -> None:
    stated = {"lr": 0.1, "betas": (0.9, 0.99), "hub": {"hub_token": OF_HF, "tokens": ["a"]}}
    expected = {**stated, "hub": {"hub_token": marked(OF_HF), "tokens": ["a"]}}
    assert redaction.settings(stated) == expected
    assert redaction.settings(expected) == expected


def test_no_word_of_an_event_holds_a_credential(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        f"Traceback (most recent call last):\nRuntimeError: cannot log in with {OF_HF}\n"
    )
    (event,) = read_events(tmp_path)
    assert event.sentence.endswith(f"cannot log in with {marked(OF_HF)}")


def test_the_address_of_a_webhook_is_one() -> None:
    of_slack, of_discord = "T00000000/B00000000/" + "aB3" * 8, "1234567890123/" + "x_Y-" * 10
    text = (
        f"posting to https://hooks.slack.com/services/{of_slack} and "
        f"https://discord.com/api/webhooks/{of_discord}\nsee https://slack.com/services/a\n"
    )
    expected = text.replace(of_slack, marked(of_slack)).replace(of_discord, marked(of_discord))
    assert redaction.shapes(text).text == expected


def redacted_in_pieces(data: bytes, chunk_bytes: int) -> tuple[bytes, int]:
    """`data` as a log that arrives in chunks."""
    written: list[bytes] = []
    rule = redacting.rule_of("log", Path("a.log"), b"", redaction.KNOWN)
    assert rule is not None
    redactor = redacting.Redactor(rule, lambda chunk: written.append(bytes(chunk)))
    for start in range(0, len(data), chunk_bytes):
        redactor.update(memoryview(data[start : start + chunk_bytes]))
    redactor.finish()
    return b"".join(written), redactor.num_values


@given(data=st.binary(max_size=300), chunk_bytes=st.integers(1, 64))
def test_bytes_without_a_credential_pass_as_they_are(data: bytes, chunk_bytes: int) -> None:
    assert redacted_in_pieces(data, chunk_bytes) == (data, 0)


@given(before=st.integers(0, 400), chunk_bytes=st.integers(1, 64), is_key=st.booleans())
def test_no_cut_lets_a_credential_pass(before: int, chunk_bytes: int, is_key: bool) -> None:
    secret = PEM if is_key else f"token {OF_HF}\n"
    lines = "a line of the log\n" * 40
    data = (lines[:before] + "\n" + secret + lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redacting, "PIECE_BYTES", 128)
        written, num_values = redacted_in_pieces(data, chunk_bytes)
    assert num_values == 1
    assert OF_HF.encode() not in written
    assert b"MIIE" not in written
    assert written.endswith(lines.encode())


def test_nothing_that_freeze_keeps_holds_a_credential_and_the_digests_say_both(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "wandb_api_key": "hushhush1"}))
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "launch.sh").write_text("export DB_PASSWORD=hushhush2\npython train.py\n")
    (run / "logs" / "train.log").write_text(f"step 1: loss 2.0\nusing {OF_HF}\n" + PEM)
    (run / "code" / "r1" / "extra.py").write_text(f"KEY = '{OF_AWS}'\n")
    settings = run / "spiketriage.toml"
    text = settings.read_text() + '\n[redact]\nkeys = ["^badge"]\npatterns = ["ACME-[0-9]{6}"]\n'
    settings.write_text(text)
    (run / "logs" / "more.yaml").write_text("badge_number: hushhush3\nother: ACME-123456\n")

    result = freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
    assert result.exit_code == 0
    incident = store.find(run, incidents=None, wanted=None)
    kept = [path for path in incident.folder.rglob("*") if path.is_file()]
    for secret in ("hushhush", OF_HF, OF_AWS, "MIIEMIIE", "ACME-123456"):
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []

    copy = layout.payload(incident.folder) / "config.json"
    assert json.loads(copy.read_text()) == {**config, "wandb_api_key": marked("hushhush1")}
    (row,) = [row for row in incident.dossier().artifacts if row.path == "config.json"]
    assert row.note == "1 credential redacted"
    assert row.size_bytes == copy.stat().st_size
    assert row.digest == xxhash.xxh3_128_hexdigest(copy.read_bytes())
    assert row.source_digest == xxhash.xxh3_128_hexdigest((run / "config.json").read_bytes())

    hashed = hash.run(run, incidents=None, incident=None, argv=["spiketriage", "hash"])
    assert hashed.exit_code == 0
    (run / "config.json").write_text("{}")
    hashed = hash.run(run, incidents=None, incident=None, argv=["spiketriage", "hash"])
    assert any("config.json: changed since the freeze" in line for line in hashed.lines)
    checked = check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"])
    assert checked.exit_code in (0, 1)


def test_no_command_on_a_run_of_somebody_else_shows_or_keeps_a_credential(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = [f"args: token {OF_HF}"]
    for step in range(1, 300):
        lines.append(f"step {step}: loss {2.0 if step < 200 else 9.0}, grad_norm 1.0")
    lines += ["Traceback (most recent call last):", f"RuntimeError: NaN loss, see {OF_AWS}"]
    (run / "train.log").write_text("\n".join(lines) + "\n")
    secrets = (OF_HF, OF_AWS)
    for command in ("inspect", "freeze", "hash", "check", "report", "status"):
        done = call(command, str(run), "--json", cwd=tmp_path)
        assert done.returncode in (0, 1, 6), done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in secrets)
    kept = [path for path in (run / ".spiketriage").rglob("*") if path.is_file()]
    assert any(path.name == "report.md" for path in kept)
    for secret in secrets:
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []


def test_settings_with_a_pattern_that_is_none_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    settings = run / "spiketriage.toml"
    settings.write_text(settings.read_text() + '\n[redact]\npatterns = ["a("]\n')
    with pytest.raises(UsageError, match=r"redact\.patterns: expected a regular expression"):
        freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
