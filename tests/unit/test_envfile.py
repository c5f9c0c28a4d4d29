# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""_envfile and env_file: what is written is read back alike by bash, by systemd's parser and by us."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _envfile_edit
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import flip, parse, render, render_line
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile_edit import Edit
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from hypothesis import given, settings
from hypothesis import strategies as st

# systemd's own reader of such lines that runs without systemd as PID 1. It is the parser of EnvironmentFile=, but it
# expands $ afterwards, refuses empty values and prints tabs escaped: these are left to the molecule scenarios, where
# units read the files.
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


def _carried(value: str) -> bool:
    try:
        render_line("K", value)
    except FleetError:
        return False
    return True


KEYS = st.from_regex(r"FLEET_[A-Za-z0-9_]{0,12}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="'"), max_size=40).filter(_carried)
TRICKY = st.text(alphabet=' \t$`"\\#;=~{}[]()*?!&|<>%:,aA1.é€', max_size=30)
ENVS = st.dictionaries(KEYS, VALUES | TRICKY, max_size=25)


def bash_reads(text: str) -> dict[str, str]:
    """What bash makes of the file, by sourcing it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "env")
        file.write_text(text, encoding="utf-8")
        script = 'set -eu -a; . "$1"; exec /usr/bin/env -0'
        done = subprocess.run(
            ["/usr/bin/bash", "--norc", "-c", script, "bash", str(file)],
            env={"PATH": "/usr/bin:/bin"},
            cwd=folder,
            capture_output=True,
            check=True,
        )
    pairs = (item.split("=", 1) for item in done.stdout.decode("utf-8").split("\0") if item)
    return {key: value for key, value in pairs if key.startswith("FLEET_")}


def systemd_reads(text: str) -> dict[str, str]:
    """What systemd's parser makes of the file; it answers KEY=value or KEY="value" with backslashes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "environment.d").mkdir()
        Path(folder, "environment.d", "50-test.conf").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [GENERATOR],
            env={"XDG_CONFIG_HOME": folder, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            check=True,
            text=True,
        )
    assert done.stderr == ""
    pairs = (line.split("=", 1) for line in done.stdout.split("\n") if line.startswith("FLEET_"))
    return {key: re.sub(r"\\(.)", r"\1", raw[1:-1]) if raw[:1] == '"' else raw for key, raw in pairs}


@given(ENVS)
@settings(max_examples=25, deadline=None)
def test_bash_and_we_read_back_what_was_written(env):
    text = render(env)
    assert parse(text, "f") == env
    assert bash_reads(text) == env


@pytest.mark.skipif(not GENERATOR.exists(), reason=f"{GENERATOR} is not installed: systemd's parser was not asked")
@given(
    st.dictionaries(
        KEYS, (VALUES | TRICKY).filter(lambda value: value and "$" not in value and "\t" not in value), max_size=25
    )
)
@settings(max_examples=25, deadline=None)
def test_systemds_parser_reads_back_what_was_written(env):
    assert systemd_reads(render(env)) == env


@given(ENVS, st.data())
@settings(max_examples=100, deadline=None)
def test_flip_changes_what_it_is_asked_to_and_nothing_else(env, data):
    comments = data.draw(st.lists(st.sampled_from(["# FLEET_=x", "", "   # note", "\t"]), max_size=4))
    text = "".join(f"{line}\n" for line in comments) + render(env)
    if env and data.draw(st.booleans()):
        text = text.removesuffix("\n")
    changes = data.draw(st.dictionaries(KEYS | st.sampled_from([*env, "FLEET_NEW"]), st.none() | VALUES, max_size=5))
    after = flip(text, changes)
    assert parse(after, "f") == {
        **{key: value for key, value in env.items() if changes.get(key, "") is not None},
        **{key: value for key, value in changes.items() if value is not None},
    }
    assert [line for line in after.split("\n")[:-1] if line in comments] == comments
    assert flip(after, changes) == after


@given(st.text(alphabet="K=ab'\"\\$ #;\r\n\texpor{}", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_with_its_line(text):
    try:
        env = parse(text, "the-file")
    except FleetError as exc:
        assert re.search(r"the-file line \d+", exc.message) or "cannot stand" in exc.message
        return
    assert flip(text, {}) == text
    assert parse(flip(text, {"NEW": "x"}), "f") == {**env, "NEW": "x"}


@given(st.text(alphabet="FLEET_A=ab'\"\\$ #;\t{}~*", max_size=40).map(lambda tail: f"FLEET_K={tail}\n"))
@settings(max_examples=50, deadline=None)
def test_a_line_that_is_accepted_reads_alike_in_bash(text):
    try:
        env = parse(text, "f")
    except FleetError:
        return
    assert bash_reads(text) == env


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("K", "", "K="),
        ("K", "602112", "K=602112"),
        ("K", "/a/b-c.gguf", "K=/a/b-c.gguf"),
        ("K", "a b", "K='a b'"),
        ("K", '{"t": false}', """K='{"t": false}'"""),
        ("K", "x$5", "K='x$5'"),
        ("K", "a\\b", "K='a\\b'"),
        ("K", "~/x", "K='~/x'"),
        ("K", "a #b", "K='a #b'"),
    ],
)
def test_quoted_only_where_a_reader_needs_it(key, value, line):
    assert render_line(key, value) == line


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("K", "it's", "single quote"),
        ("K", "a\nb", "one line"),
        ("K", "a\0b", "control"),
        ("K", "a\x1bb", "control"),
        ("K", "\ud800", "cannot be written"),
        ("K", "\ufffe", "cannot be written"),
        ("", "x", "no name"),
        ("1K", "x", "no name"),
        ("K-L", "x", "no name"),
        ("K L", "x", "no name"),
        ("UID", "1", "bash"),
    ],
)
def test_what_no_quoting_carries_is_refused(key, value, words):
    with pytest.raises(FleetError, match=words):
        render_line(key, value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("K=a b c", "blank outside quotes"),
        ('K="a $HOME"', "bash expands"),
        ('K={"t":false}', "quotes"),
        ("K=a #b", "blank outside quotes"),
        ("K=a\\b", "backslash"),
        ("K=x$5", "expand"),
        ("K=$(id)", "expand"),
        ("export K=1", "export"),
        ("K=abc\\", "joins the next line"),
        ("K = 1", "blanks around"),
        ("K= 1", "blanks around"),
        (";comment", "syntax error to bash"),
        ("# a comment\\", "next line for comment"),
        ("K='a", "quotes"),
        ('K="a', "quotes"),
        ("K='a'b", "quotes"),
        ("K=1\r", "carriage return"),
        ("nonsense", "no assignment"),
        ("2K=1", "no name"),
        ("UID=1", "bash"),
        ("J=1", "J once"),
    ],
)
def test_what_the_readers_read_differently_is_refused(line, words):
    with pytest.raises(FleetError, match=words) as caught:
        parse(f"J=0\n\n{line}\nL=1\n", "/etc/x.env")
    assert "/etc/x.env line 3" in caught.value.message or "UID" in caught.value.message
    with pytest.raises(FleetError):
        flip(f"J=0\n\n{line}\nL=1\n", {"J": "5"})


def test_byte_order_mark_is_refused():
    with pytest.raises(FleetError, match="byte order mark"):
        parse("\ufeffK=1\n", "f")


@pytest.mark.parametrize(
    ("text", "changes", "after"),
    [
        ("A=1\n# B=2\nB=3\nC=4\n", {"B": "9"}, "A=1\n# B=2\nB=9\nC=4\n"),
        ("A=1\n# B=2\n", {"B": "9"}, "A=1\n# B=2\nB=9\n"),
        ("A=1", {"B": "2"}, "A=1\nB=2\n"),
        ("A=1", {"A": "2"}, "A=2"),
        ("A=1\nB=2", {"B": None}, "A=1\n"),
        ("A=1\nB=2\n", {"A": None}, "B=2\n"),
        ("A=1\n", {"B": None}, "A=1\n"),
        ('A="x"\n', {"A": "x"}, 'A="x"\n'),
        ("  A='x'  \n", {"A": "y z"}, "  A='y z'  \n"),
        ("AB=1\nB=2\n", {"B": "3"}, "AB=1\nB=3\n"),
        ("A=1\n", {"A": ""}, "A=\n"),
        ("", {"A": "1", "B": "2"}, "A=1\nB=2\n"),
        ("\n\n", {}, "\n\n"),
        ("", {"A": None}, ""),
    ],
)
def test_flip(text, changes, after):
    assert flip(text, changes) == after


def edit(path, unset=(), **options):
    return Edit(str(path), options.pop("set", {}), list(unset), **options)


def test_the_file_keeps_its_mode_and_is_written_once(tmp_path):
    path = tmp_path / "x.env"
    path.write_text("A=1\n")
    path.chmod(0o640)
    planned = _envfile_edit.plan(edit(path, set={"A": 2}))
    assert planned.changed and path.read_text() == "A=1\n"
    assert planned.diff == [
        {"before_header": str(path), "after_header": str(path), "before": "A=1\n", "after": "A=2\n"}
    ]
    _envfile_edit.carry_out(planned)
    assert path.read_text() == "A=2\n" and path.stat().st_mode & 0o777 == 0o640
    assert not _envfile_edit.plan(edit(path, set={"A": 2})).changed
    planned = _envfile_edit.plan(edit(path, mode="0600"))
    assert planned.changed and "0640" in planned.diff[1]["before"] and "0600" in planned.diff[1]["after"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"set": {"A": "1"}, "unset": ["A"]}, "in set and in unset"),
        ({"set": {"A": True}}, "text or a number"),
        ({"set": {"A": ["x"]}}, "text or a number"),
        ({"mode": "rw"}, "octal"),
        ({"owner": "no-such-user-here"}, "this host knows"),
        ({"set": {"A": "it's"}}, "single quote"),
    ],
)
def test_an_edit_that_cannot_be_made(tmp_path, options, words):
    path = tmp_path / "x.env"
    path.write_text("A=0\n")
    with pytest.raises(FleetError, match=words):
        _envfile_edit.plan(edit(path, **options))
    assert path.read_text() == "A=0\n"


def test_absent_linked_or_binary_files(tmp_path):
    path = tmp_path / "x.env"
    with pytest.raises(FleetError, match="is not there"):
        _envfile_edit.plan(edit(path))
    _envfile_edit.carry_out(_envfile_edit.plan(edit(path, set={"A": "1"}, create=True)))
    assert path.read_text() == "A=1\n" and path.stat().st_mode & 0o777 == 0o644
    link = tmp_path / "link.env"
    link.symlink_to(path)
    with pytest.raises(FleetError, match="symbolic link"):
        _envfile_edit.plan(edit(link))
    with pytest.raises(FleetError, match="absolute"):
        _envfile_edit.plan(edit("x.env"))
    path.write_bytes(b"A=\xff\n")
    with pytest.raises(FleetError, match="UTF-8"):
        _envfile_edit.plan(edit(path))


@pytest.mark.parametrize("check", [True, False])
def test_the_module_through_ansible(tmp_path, check):
    path = tmp_path / "x.env"
    path.write_text("# note\nA=1\nB=2\n")
    root = Path(__file__).resolve().parents[2]
    python = root / ".venv" / "bin" / "python"
    args = json.dumps({"path": str(path), "set": {"A": "x y"}, "unset": ["B"]})
    command = ["ansible", "localhost", "-c", "local", "-e", f"ansible_python_interpreter={python}", "--diff"]
    done = subprocess.run(
        [
            python.parent / command[0],
            *command[1:],
            *(["--check"] if check else []),
            "-m",
            "dank.llm_fleet.env_file",
            "-a",
            args,
        ],
        cwd=root,
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-A=1" in done.stdout and "+A='x y'" in done.stdout and "-B=2" in done.stdout
    assert path.read_text() == ("# note\nA=1\nB=2\n" if check else "# note\nA='x y'\n")
