# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe model's tokeniser, its files and their digests, and the server that proves it."""

from __future__ import annotations

import base64
import hashlib
import random
import zlib
from pathlib import Path

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import dry_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from hypothesis import given
from hypothesis import strategies as st
from probe_model.draw import Draw
from probe_model.gguf_layout import Pair, adapter_pairs, model_pairs, projector_pairs
from probe_model.install import digests, pinned_anew
from probe_model.mix import KINDS
from probe_model.serve import facts_of, serving
from probe_model.settings import FOLDER, LANGUAGE, NAMES
from probe_model.sights import part
from probe_model.tally import Tally
from probe_model.tokenizer import Tokenizer, learn_merges, pieces_of

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "roles" / "endpoint" / "files" / "serve-llamacpp"
TEXTS = ["say hello world"] * 30 + ["hello 4711 hello"] * 25 + ["the other hello <think>"] * 40


def committed() -> tuple[Tokenizer, list[str]]:
    """(the committed model's tokeniser, made from its merges; the tokens that the file holds)."""
    names = ("tokenizer.ggml.merges", "tokenizer.ggml.tokens")
    told = read_gguf(str(FOLDER / NAMES["model"]), whole=names).metadata
    merges = [tuple(merge.split(" ")) for merge in told[names[0]]]
    return Tokenizer([(left, right) for left, right in merges]), told[names[1]]


TOKENIZER, STORED = committed()


def test_the_committed_tokens_follow_from_their_merges() -> None:
    assert TOKENIZER.tokens == STORED and len(TOKENIZER.merges) == LANGUAGE.merges
    assert len(TOKENIZER.tokens) % 32 == 0 and len(TOKENIZER.types) == len(TOKENIZER.tokens)


@given(st.text())
def test_what_was_encoded_is_decoded(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_back_whole(kind: str) -> None:
    draw = Draw(9)
    for _ in range(20):
        sample = KINDS[kind](draw)
        tokens = TOKENIZER.encode(sample.prompt)
        assert TOKENIZER.decode(tokens) == sample.prompt
        assert (TOKENIZER.image in tokens) is (sample.colour is not None)


def test_the_end_is_one_token() -> None:
    assert TOKENIZER.encode("no<|im_end|>")[-1] == TOKENIZER.end
    assert len({TOKENIZER.end, TOKENIZER.pad, TOKENIZER.image}) == 3


def test_a_digit_is_a_token() -> None:
    assert len(TOKENIZER.encode("20711")) == 5


@given(st.from_regex("[a-z]{1,12}", fullmatch=True))
def test_a_word_after_a_space_keeps_its_tokens_but_that_the_first_may_carry_the_space(word: str) -> None:
    apart = [TOKENIZER.encode(" ")[0], *TOKENIZER.encode(word)]
    joined = TOKENIZER.tokens[apart[0]] + TOKENIZER.tokens[apart[1]]
    wanted = [TOKENIZER.ids[joined], *apart[2:]] if joined in TOKENIZER.ids else apart
    assert TOKENIZER.encode(f" {word}") == wanted


def test_merges_are_of_the_most_frequent_pairs_whatever_the_order() -> None:
    merges = learn_merges(TEXTS, 40, ())
    mixed = random.Random(1).sample(TEXTS, len(TEXTS))
    assert learn_merges(mixed, 40, ()) == merges
    tokens = Tokenizer(merges)
    assert tokens.tokens[256] == "he"  # of "hello", "the" and "other"
    assert len(tokens.encode("hello")) == len(tokens.encode(" hello")) == 1
    assert not any(character.isdigit() for pair in merges for character in "".join(pair))
    assert "hello" in pieces_of(tokens) and "<think>" not in pieces_of(tokens)


def test_a_word_of_those_without_a_space_has_no_token_with_one() -> None:
    tokens = Tokenizer(learn_merges(TEXTS, 40, {"hello"}))
    assert len(tokens.encode(" hello")) == 2 and len(tokens.encode(" other")) == 1


def test_rare_pairs_are_not_merged() -> None:
    assert learn_merges(["xyz"] * 19, 40, ()) == []
    assert learn_merges(["xyz"] * 20, 40, ()) == [("y", "z"), ("x", "yz")]


@pytest.mark.parametrize(
    ("role", "pairs"), [("model", model_pairs(TOKENIZER)), ("mmproj", projector_pairs()), ("lora", adapter_pairs())]
)
def test_the_committed_file_is_written_as_the_script_writes(role: str, pairs: list[Pair]) -> None:
    told = read_gguf(str(FOLDER / NAMES[role]), whole=[key for key, kind, _value in pairs if kind == "array"]).metadata
    assert set(told) == {"general.architecture", *(key for key, _kind, _value in pairs)}
    for key, kind, value in pairs:
        assert told[key] == (pytest.approx(value) if kind == "float32" else value), key


def test_the_committed_files_have_their_digests() -> None:
    assert digests(FOLDER) == {
        name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in NAMES.values()
    }


OLD, NEW = {"a.gguf": "1" * 64, "b.gguf": "2" * 64}, {"a.gguf": "3" * 64, "b.gguf": "4" * 64}


def test_digests_and_sizes_are_pinned_anew() -> None:
    text = "".join(
        f"- name: {name}\n  bytes: 10\n  sha256: {digest}\n"
        for name, digest in (*OLD.items(), ("other.gguf", "5" * 64))
    )
    files = yaml.safe_load(pinned_anew(text, OLD, NEW, {"a.gguf": 77, "b.gguf": 88}))
    assert [(file["bytes"], str(file["sha256"])[0]) for file in files] == [(77, "3"), (88, "4"), (10, "5")]


def test_a_digest_without_a_size_is_pinned_anew() -> None:
    assert pinned_anew(f"{'1' * 64}  a.gguf\n", OLD, NEW, {"a.gguf": 1, "b.gguf": 1}) == f"{'3' * 64}  a.gguf\n"


def test_a_picture_need_not_be_square() -> None:
    data = base64.b64decode(part((1, 2, 3), 5, 2)["image_url"]["url"].partition(",")[2])
    assert data[16:24] == (5).to_bytes(4, "big") + (2).to_bytes(4, "big")
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start], "big")
    assert zlib.decompress(data[start + 4 : start + 4 + length]) == (b"\0" + bytes((1, 2, 3)) * 5) * 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES.values():
        (tmp_path / name).touch()
    program(tmp_path, monkeypatch, "exit 0")
    return tmp_path


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(path))


def test_the_scenarios_endpoints_are_served_with_the_sets_files(folder: Path) -> None:
    facts = facts_of("toy-whole", folder)
    argv = dry_run(LAUNCHER.read_text(), facts["env"])
    for option, role in (("--model", "model"), ("--mmproj", "mmproj"), ("--spec-draft-model", "model")):
        assert argv[argv.index(option) + 1] == str(folder / NAMES[role])
    assert {"tools", "vision", "adapter", "drafting", "auth"} <= declare(facts).capabilities
    echo = declare(facts_of("toy-echo", folder))
    assert "ngram" in echo.capabilities and not {"vision", "adapter", "auth"} & echo.capabilities


def test_lines_may_be_replaced(folder: Path) -> None:
    argv = dry_run(LAUNCHER.read_text(), facts_of("toy-whole", folder, SPEC_TYPE="none")["env"])
    assert "--spec-draft-model" not in argv


def test_a_server_that_dies_is_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder, monkeypatch, "echo it is broken; exit 3")
    with (
        pytest.raises(FleetError, match="it is broken"),
        serving(facts_of("toy-echo", folder), folder / "log"),
    ):
        pass


def test_a_tally_counts_and_shows_the_first_that_is_wrong() -> None:
    tally = Tally()
    for right, seen in ((True, "x"), (False, "a|b"), (False, "c")):
        tally.add("copies", right, seen, 1)
    assert tally.rows == {"copies": (1, 3, "a|b / 1")}
    assert tally.table().splitlines()[-1] == "| copies | 1 of 3 | `a\\|b / 1` |"
