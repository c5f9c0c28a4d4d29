# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile.env as it is written and read, with bash as the judge of what a start comes to."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_profile_env import (
    faults_of_profile,
    first_set,
    parse_profile,
    render_profile,
    settings_of,
)
from ansible_collections.dank.llm_fleet.plugins.modules import r9v_profile_env
from hypothesis import given, settings
from hypothesis import strategies as st

OWN, BASE = "profiles/q8/dual/profile.env", "profiles/dual/profile.env"
BASE_TEXT = """# the reference
: "${R9V_MAX_MODEL_LEN:=131072}"
: "${R9V_PLE_EXPECTED_SHA256:=dd55}"
: "${R9V_PLE_RESIDENCY_MODE:=ssd}"
: "${R9V_PROFILER_DIR:=}"
"""
# As the fork's own profiles are written.
FORKS_TEXT = r"""# SPDX-License-Identifier: Apache-2.0
: "${R9V_PLE_RESIDENCY_MODE:=pinned}"
: "${R9V_Q8_MMVQ5_SHAPES:=[\"2560,3072\",\"640,2560\"]}"
r9v_profile_base=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
: "${R9V_EXPERT_MANIFEST_PATH:=$r9v_profile_base/placements/m.json}"
source "$r9v_profile_base/profiles/dual/profile.env"
unset r9v_profile_base
"""


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def by_bash(path: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The R9V_* variables after bash has read the profile, as the fork's launcher does."""
    done = subprocess.run(
        ["bash", "-euc", 'set -a; source "$1"; set +a; env -0', "bash", path],
        env={"PATH": "/usr/bin:/bin", **(environment or {})}, capture_output=True, check=True,
    )  # fmt: skip
    rows = (entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry.startswith("R9V_"))
    return dict(rows)


def filled(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


values = st.text(
    st.characters(codec="utf-8", exclude_characters="'<>").filter(str.isprintable), min_size=1, max_size=20
)
awkward = st.text(st.sampled_from('\\"$`}{ #~*!&;|()[]%=:a?^,@+-'), min_size=1, max_size=12)


@settings(max_examples=40)
@given(st.dictionaries(st.from_regex(r"R9V_[A-Z0-9_]{1,6}", fullmatch=True), values | awkward, max_size=4))
def test_bash_reads_what_was_written(given_values: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        put(root, BASE, BASE_TEXT)
        path = put(root, OWN, render_profile(given_values, OWN, BASE, "made for a test"))
        found = by_bash(path)
        assert filled(found) == settings_of(str(path), folder)
        assert {key: found[key] for key in given_values} == given_values


def test_what_is_set_first_wins(tmp_path: Path) -> None:
    put(tmp_path, BASE, BASE_TEXT)
    path = put(tmp_path, OWN, render_profile({"R9V_PLE_RESIDENCY_MODE": "pinned"}, OWN, BASE))
    assert by_bash(path)["R9V_PLE_RESIDENCY_MODE"] == "pinned"
    assert by_bash(path)["R9V_MAX_MODEL_LEN"] == "131072"
    environment = {"R9V_PLE_RESIDENCY_MODE": "bounded", "R9V_MAX_MODEL_LEN": ""}
    found = by_bash(path, environment)
    assert (found["R9V_PLE_RESIDENCY_MODE"], found["R9V_MAX_MODEL_LEN"]) == ("bounded", "131072")
    assert filled(found) == first_set(environment, settings_of(str(path), str(tmp_path)))


def test_a_profile_of_the_forks_is_read_as_bash_reads_it(tmp_path: Path) -> None:
    put(tmp_path, BASE, BASE_TEXT)
    path = put(tmp_path, OWN, FORKS_TEXT)
    assert settings_of(str(path), str(tmp_path)) == filled(by_bash(path))
    assert faults_of_profile(parse_profile(FORKS_TEXT, "p", "/fork")) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f'source "$b/{BASE}"\n: "${{R9V_MAX_MODEL_LEN:=4}}"', "line 2: R9V_MAX_MODEL_LEN comes after the base"),
        (f': "${{R9V_PLE_EXPECTED_SHA256:=}}"\nsource "$b/{BASE}"', "line 1: R9V_PLE_EXPECTED_SHA256 is empty"),
        (': "${R9V_A:=1}"\n: "${R9V_A:=2}"', "line 2: R9V_A was set in line 1, and the first one wins"),
    ],
)
def test_a_line_that_does_not_do_what_it_says(tmp_path: Path, lines: str, words: str) -> None:
    put(tmp_path, BASE, BASE_TEXT)
    (fault,) = faults_of_profile(parse_profile(lines, "p", str(tmp_path)))
    assert words in fault
    # The reader comes to what bash comes to, fault or none.
    path = put(tmp_path, OWN, f"b={tmp_path}\n{lines}\n")
    found = by_bash(path)
    put(tmp_path, OWN, lines)
    assert settings_of(str(path), str(tmp_path)) == filled(found)


@pytest.mark.parametrize(
    "line",
    [
        "R9V_A=1",
        "export R9V_A=1",
        ': "${R9V_A=1}"',
        ': "${R9V_A:-1}"',
        ": ${R9V_A:=1}",
        ': "${R9V_A:=1}" # why',
        "if true; then",
        ': "${R9V_A:=it\'s}"',
        ': "${R9V_A:=1}"\r',
        f'source "$b/{BASE}"\nsource "$b/{BASE}"',
        'source "$b/$(id)"',
        f'source "/{BASE}"',
    ],
)
def test_a_line_that_means_something_else_is_refused_by_number(line: str) -> None:
    number = 2 + line.count("\n")
    with pytest.raises(FleetError, match=rf"profile\.env, line {number}; expected"):
        parse_profile(f"# head\n{line}\n", "profile.env", "/fork")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": {"R9V_A": ""}}, "set.R9V_A; expected a value; found an empty one"),
        ({"values": {"R9V_A": "a\nb"}}, "printable text on one line"),
        ({"values": {"R9V_A": "a\tb"}}, "printable text on one line"),
        ({"values": {"R9V_A": "it's"}}, 'without apostrophe, < and >; found "it\'s"'),
        ({"values": {"R9V_A": "<(id)"}}, "without apostrophe, < and >"),
        ({"values": {"PATH": "/"}}, "set.PATH; expected a key R9V_..."),
        ({"values": {"R9V_a": "1"}}, "set.R9V_a"),
        ({"base": "/abs/profile.env"}, "base; expected a plain path relative to the checkout"),
        ({"base": "../profile.env"}, "base; expected a plain path"),
        ({"base": "a$(id).env"}, "base; expected a plain path"),
        ({"path": "../profile.env"}, "path; expected a plain path"),
    ],
)
def test_what_is_not_written(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError) as caught:
        render_profile(**{"values": {"R9V_A": "1"}, "path": OWN, "base": BASE, **change})
    assert words in caught.value.message


def test_a_base_that_is_missing_or_stands_on_itself(tmp_path: Path) -> None:
    path = put(tmp_path, OWN, render_profile({}, OWN, BASE))
    with pytest.raises(FleetError, match=f"profile {tmp_path}/{BASE}; expected a file; found no such file"):
        settings_of(str(path), str(tmp_path))
    put(tmp_path, BASE, render_profile({}, BASE, OWN))
    with pytest.raises(FleetError, match="stands on itself"):
        settings_of(str(path), str(tmp_path))


def ask(capsys: pytest.CaptureFixture[str], root: Path, **params: Any) -> dict[str, Any]:
    with patch_module_args({"checkout": str(root), "path": OWN, **params}), pytest.raises(SystemExit) as caught:
        r9v_profile_env.main()
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert caught.value.code == int(told.get("failed", False))
    return told


def test_the_module_writes_once_and_tells_what_a_start_comes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, BASE, BASE_TEXT)
    given_values = {"base": BASE, "set": {"R9V_PLE_RESIDENCY_MODE": "pinned", "R9V_CACHE80": 1}}
    dry = ask(capsys, tmp_path, **given_values, _ansible_check_mode=True)
    assert dry["changed"] and not (tmp_path / OWN).exists()
    told = ask(capsys, tmp_path, **given_values, environment={"R9V_MAX_MODEL_LEN": "4096"})
    assert told["settings"] == {
        "R9V_MAX_MODEL_LEN": "4096",
        "R9V_PLE_RESIDENCY_MODE": "pinned",
        "R9V_CACHE80": "1",
        "R9V_PLE_EXPECTED_SHA256": "dd55",
    }
    assert told["diff"]["after"] == (tmp_path / OWN).read_text() == dry["diff"]["after"]
    inode = (tmp_path / OWN).stat().st_ino
    assert not ask(capsys, tmp_path, **given_values)["changed"]
    assert (tmp_path / OWN).stat().st_ino == inode
    read = ask(capsys, tmp_path, state="verified", environment={"R9V_MAX_MODEL_LEN": "4096"})
    assert (read["changed"], read["settings"]) == (False, told["settings"])


def test_the_module_names_every_faulty_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, BASE, BASE_TEXT)
    put(tmp_path, OWN, f': "${{R9V_B:=}}"\nsource "$b/{BASE}"\n: "${{R9V_A:=1}}"\n')
    told = ask(capsys, tmp_path, state="verified")
    assert len(told["faults"]) == 2 and "before the base" in told["msg"]
    assert "Quote it" in ask(capsys, tmp_path, set={"R9V_A": True})["msg"]
    assert "set.R9V_A" in ask(capsys, tmp_path, set={"R9V_A": ["x"]})["msg"]
