# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module r9v_package through its main: sizes and digests from the disk, and every lie told in one error."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import Draft, brief, json_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_package import read_package
from ansible_collections.dank.llm_fleet.plugins.modules import r9v_package
from hypothesis import given
from hypothesis import strategies as st
from r9vshards import Q8_0, ple, tensor, write_set

Ask = Callable[..., dict[str, Any]]
SHARDS = [f"target/m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
FILES = [
    *({"role": "target", "path": path} for path in SHARDS),
    {"role": "vision-projector", "path": "vision/mmproj.gguf"},
    {"role": "adapter", "path": "adapter.py"},
    {"role": "chat-template", "path": "metadata/chat_template.jinja"},
]
TABLE = "data/table.bin"


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder: no tensor in the first shard, the embedding alone in the last."""
    model = tmp_path / "model"
    write_set(model / "target", "m", [[], [tensor("a", (64, 3), Q8_0)], [ple(rows=4)]])
    for name, data in (("vision/mmproj.gguf", b"GGUF..."), ("adapter.py", b"pass\n"), (FILES[-1]["path"], b"{{ x }}")):
        path = model / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return model


@pytest.fixture
def ask(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    usual = {
        "path": str(tmp_path / "fork" / "packages" / "m" / "package.json"),
        "model_dir": str(folder),
        "id": "m-q8",
        "model": "M",
        "quant": "Q8_0",
        "license": "none",
        "artifacts": FILES,
        "ple": {"path": TABLE},
        "checkout": "/fork",
        "stamp_dir": str(tmp_path / "stamps"),
    }
    (tmp_path / "fork").mkdir()

    def run(**more: Any) -> dict[str, Any]:
        given = {key: value for key, value in {**usual, **more}.items() if value is not None}
        with patch_module_args(given), pytest.raises(SystemExit) as caught:
            r9v_package.main()
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert caught.value.code == int(told.get("failed", False))
        return told

    return run


def verified(ask: Ask, **more: Any) -> dict[str, Any]:
    """The package that is there, held against the disk; of what it says nothing is handed over."""
    words = dict.fromkeys(("id", "model", "quant", "license", "artifacts", "ple"))
    return ask(state="verified", **words, **more)


def package_path(tmp_path: Path) -> Path:
    return tmp_path / "fork" / "packages" / "m" / "package.json"


def test_every_size_and_digest_is_the_disks(tmp_path: Path, folder: Path, ask: Ask) -> None:
    told = ask()
    written = json.loads(package_path(tmp_path).read_text())
    assert told["changed"] and told["package"] == written
    assert list(written) == ["schema", "id", "model", "quant", "license", "artifacts", "derived_artifacts"]
    assert written["schema"] == "r9v.model-package.v1"
    for row, file in zip(written["artifacts"], FILES, strict=True):
        path = folder / file["path"]
        assert row == {**file, "bytes": path.stat().st_size, "sha256": sha(path), "required": True}
    assert written["derived_artifacts"] == [
        {
            "role": "ple",
            "path": TABLE,
            "source_artifact": SHARDS[2],
            "tensor_name": "per_layer_token_embd.weight",
            "tensor_type": "Q8_0",
            "bytes": 4 * 170,
        }
    ]


def test_the_identity_is_the_headers_and_the_files_beside_it(folder: Path, ask: Ask) -> None:
    told = ask()
    identity = told["identity"]
    assert (identity["architecture"], identity["shards"], identity["types"]) == ("llama", 3, {"q8_0": 2})
    assert identity["bytes"] == sum((folder / path).stat().st_size for path in SHARDS)
    for role in ("vision_projector", "adapter", "chat_template"):
        assert identity[role]["sha256"] == sha(folder / identity[role]["path"])
    assert told["ple"]["path"] == str(folder / TABLE) and told["ple"]["there"] is False
    assert told["ple"]["command"][:4] == [
        "/fork/tools/prepare_ple.py",
        str(folder / SHARDS[2]),
        "--output",
        str(folder / TABLE),
    ]


def test_a_second_run_reads_no_file_and_changes_no_byte(tmp_path: Path, ask: Ask) -> None:
    assert ask()["read"] == len(FILES)
    before = (package_path(tmp_path).read_bytes(), package_path(tmp_path).stat().st_ino)
    again = ask()
    assert (again["changed"], again["read"]) == (False, 0)
    assert again["diff"]["before"] == again["diff"]["after"]
    assert (package_path(tmp_path).read_bytes(), package_path(tmp_path).stat().st_ino) == before
    assert ask(verify="full")["read"] == len(FILES)


def test_check_mode_tells_and_writes_nothing(tmp_path: Path, ask: Ask) -> None:
    dry = ask(_ansible_check_mode=True, _ansible_diff=True)
    assert dry["changed"] and dry["diff"]["before"] == "" and '"id": "m-q8"' in dry["diff"]["after"]
    assert not package_path(tmp_path).exists() and not (tmp_path / "stamps").exists()


def test_a_file_that_changed_is_read_again_and_told(tmp_path: Path, folder: Path, ask: Ask) -> None:
    ask()
    (folder / "adapter.py").write_bytes(b"fail\n")
    told = ask()
    assert (told["changed"], told["read"]) == (True, 1)
    assert sha(folder / "adapter.py") in told["diff"]["after"]


def test_an_old_package_keeps_its_mode(tmp_path: Path, ask: Ask) -> None:
    ask()
    package_path(tmp_path).chmod(0o640)
    ask(quant="another word")
    assert package_path(tmp_path).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bytes": 5}, "artifact adapter.py"),
        ({"bytes": 6}, "expected 6 bytes; found 5 bytes"),
        ({"sha256": "0" * 64}, f"expected sha256 {'0' * 64}; found "),
        ({"sha256": "xyz"}, "sha256 is malformed"),
        ({"path": "nothing.py"}, "expected a file; found no such file"),
        ({"path": "../package.json"}, "expected a path below"),
        ({"path": "/etc/passwd"}, "expected a path below"),
        ({"path": "metadata/../vision/mmproj.gguf"}, "vision/mmproj.gguf twice"),
        ({"path": "page.gguf"}, "an HTML page"),
        ({"path": "link.py"}, "a symbolic link"),
        ({"path": "metadata"}, "found no such file"),
        ({"role": "stranger"}, "value of role must be one of"),
    ],
)
def test_an_artifact_that_is_not_what_it_should_be(folder: Path, ask: Ask, more: dict[str, Any], words: str) -> None:
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    (folder / "link.py").symlink_to("adapter.py")
    files = [*FILES[:4], {**FILES[4], **more}, FILES[5]]
    told = ask(artifacts=files)
    if more == {"bytes": 5}:  # what the publisher states is so
        assert told["changed"]
    else:
        assert words in told["msg"]


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (FILES[3:], "no artifact of role target"),
        (FILES[:2] + FILES[3:], f"{SHARDS[2]} is of the set or of the package, and not of both"),
        (FILES[1:], f"{SHARDS[1]} is not the first part of a set"),
    ],
)
def test_a_target_that_is_no_whole_set(ask: Ask, keep: list[dict[str, str]], words: str) -> None:
    assert words in ask(artifacts=keep)["msg"]


def test_a_declared_table_one_byte_short_is_refused_before_anything_is_read(tmp_path: Path, ask: Ask) -> None:
    told = ask(ple={"path": TABLE, "bytes": 679})
    assert "expected 680, as" in told["msg"] and "found 679" in told["msg"]
    assert not (tmp_path / "stamps").exists()
    assert ask(ple={"path": TABLE, "bytes": 680})["ple"]["bytes"] == 680
    assert "a tensor other.weight; found none" in ask(ple={"path": TABLE, "tensor": "other.weight"})["msg"]
    assert ask(ple=None)["ple"] == {}


def test_a_whole_package_is_verified(folder: Path, ask: Ask) -> None:
    ask()
    told = verified(ask)
    assert (told["changed"], told["read"], told["ple"]["there"]) == (False, 0, False)
    assert verified(ask, verify="full")["read"] == len(FILES)
    (folder / TABLE).parent.mkdir()
    (folder / TABLE).write_bytes(bytes(680))
    assert verified(ask)["ple"]["there"] is True


def test_every_lie_is_told_in_one_error(tmp_path: Path, folder: Path, ask: Ask) -> None:
    ask()
    (folder / "adapter.py").write_bytes(b"fail\n")
    (folder / "metadata" / "chat_template.jinja").write_bytes(b"longer than before")
    (folder / "vision" / "mmproj.gguf").unlink()
    (folder / TABLE).parent.mkdir()
    (folder / TABLE).write_bytes(bytes(679))
    told = verified(ask)
    assert {lie["path"]: lie["found"].partition(" ")[0] for lie in told["lies"]} == {
        "adapter.py": "sha256",
        "metadata/chat_template.jinja": "18",
        "vision/mmproj.gguf": "no",
        str(folder / TABLE): "679",
    }
    assert "lies about 4 files" in told["msg"]
    (folder / SHARDS[1]).unlink()
    assert SHARDS[1] in [lie["path"] for lie in verified(ask)["lies"]]


@pytest.mark.parametrize("number", range(len(FILES)))
@pytest.mark.parametrize(("key", "value"), [("bytes", 1), ("sha256", "0" * 64)])
def test_one_changed_number_of_a_package_is_seen(tmp_path: Path, ask: Ask, number: int, key: str, value: Any) -> None:
    package = ask()["package"]
    package["artifacts"][number][key] = value
    package_path(tmp_path).write_text(json.dumps(package))
    told = verified(ask)
    assert [lie["path"] for lie in told["lies"]] == [FILES[number]["path"]]


@pytest.mark.parametrize(("key", "value"), [("bytes", 679), ("tensor_type", "IQ4_NL"), ("source_artifact", SHARDS[1])])
def test_one_changed_word_of_the_table_is_seen(tmp_path: Path, ask: Ask, key: str, value: Any) -> None:
    package = ask()["package"]
    package["derived_artifacts"][0][key] = value
    package_path(tmp_path).write_text(json.dumps(package))
    (lie,) = verified(ask)["lies"]
    assert lie["path"] == TABLE and f"{key} {value}" in lie["found"] and "680 bytes by the header" in lie["expected"]


def test_a_stamp_does_not_hide_a_flipped_byte_from_a_full_read(folder: Path, ask: Ask) -> None:
    ask()
    path = folder / "adapter.py"
    info = path.stat()
    path.write_bytes(b"pasS\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))  # ctime tells still
    assert [lie["path"] for lie in verified(ask)["lies"]] == ["adapter.py"]
    assert [lie["path"] for lie in verified(ask, verify="full")["lies"]] == ["adapter.py"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "r9v.model-package.v2"}, "schema 'r9v.model-package.v2'"),
        ({"id": None}, "id None"),
        ({"artifacts": []}, "no artifacts"),
        ({"artifacts": [1]}, "artifacts[0] is no object"),
        ({"artifacts": [{"path": "/a"}]}, "artifacts[0].path '/a' is no relative path"),
        ({"artifacts": [{"path": "a/../b"}]}, "is no relative path"),
        ({"artifacts": [{"path": "a", "bytes": -1}]}, "a: bytes -1"),
        ({"artifacts": [{"path": "a", "bytes": True}]}, "a: bytes True"),
        ({"artifacts": [{"path": "a", "bytes": 1, "sha256": "A" * 64}]}, "a: sha256 "),
        ({"artifacts": [{"path": "a", "bytes": 1, "sha256": "a" * 64}]}, "a: role None"),
        ({"artifacts": [{"role": "license", "path": "a", "bytes": 1, "sha256": "a" * 64}] * 2}, "a twice"),
        ({"derived_artifacts": {"path": "a"}}, "derived_artifacts is no list"),
        ({"derived_artifacts": ["a"]}, "derived_artifacts[0] is no object"),
        ({"derived_artifacts": [{"path": "a"}]}, "derived_artifacts[0].tensor_name None"),
        ({"derived_artifacts": [{"tensor_name": "t", "path": 1}]}, "derived_artifacts[0].path 1"),
    ],
)
def test_a_package_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    row = {"role": "license", "path": "a", "bytes": 1, "sha256": "a" * 64}
    sound = {
        "schema": "r9v.model-package.v1",
        "id": "i",
        "model": "m",
        "quant": "q",
        "license": "l",
        "artifacts": [row],
    }
    path = tmp_path / "package.json"
    path.write_text(json.dumps(sound))
    assert read_package(str(path)) == sound
    path.write_text(json.dumps({**sound, **change}))
    with pytest.raises(FleetError) as caught:
        read_package(str(path))
    assert words in caught.value.message and str(path) in caught.value.message


def test_what_is_needed_to_write(ask: Ask) -> None:
    assert "license" in ask(license=None)["msg"]


@given(
    st.dictionaries(
        st.text(max_size=6),
        st.recursive(
            st.text(max_size=12) | st.integers() | st.none() | st.booleans(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=12,
        ),
        max_size=4,
    )
)
def test_the_text_of_json_says_the_same(value: dict[str, Any]) -> None:
    assert json.loads(json_text(value)) == value


def test_numbers_stand_on_one_line_and_strings_are_left_alone() -> None:
    text = json_text({"a": [1, 2, 3], "b": "[1,   2]", "c": [[4, 5], [6]]})
    assert '"a": [1, 2, 3]' in text and '"[1,   2]"' in text and "[4, 5]" in text


def test_a_diff_shows_long_lists_by_count_and_digest() -> None:
    long, other = list(range(28)), [*range(27), 99]
    text = json_text({"a": [long, long, long], "b": [1, 2], "c": long, "d": "x"})
    shown = brief(text)
    assert shown.count("28 numbers") == 2 and ")] x 3," in shown and "[1, 2]" in shown and '"d": "x"' in shown
    assert shown.count("\n") < 10
    assert brief(json_text({"a": [long, other, long]})).count("28 numbers") == 3
    assert brief(json_text({"a": other})) != brief(json_text({"a": long}))  # no change is hidden


def test_a_draft_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    draft = Draft(str(tmp_path / "a" / "b" / "c.json"), "{}\n")
    draft.write()
    assert (tmp_path / "a" / "b" / "c.json").read_text() == "{}\n"
    assert not Draft(draft.path, "{}\n").changed
