# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Source trees: what pins one, and how it gets onto the host. The pin is known without touching the source."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import refuse_gaps, runtime_gaps

__all__ = ["Source", "obtain", "parse_source", "source_digest", "tree_digest"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_BLOCK = 1 << 20
_HTTP_TIMEOUT_S = 60.0
_GIT_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Source:
    """One pinned source; ``kind`` says which of the fields count. ``patches`` are (URL, sha256), in their order."""

    kind: str
    urls: tuple[str, ...] = field(default=())
    sha256: str = ""
    url: str = ""
    commit: str = ""
    path: str = ""
    subdir: str = ""
    tag: str = ""
    mirrors: tuple[str, ...] = field(default=())
    patches: tuple[tuple[str, str], ...] = field(default=())


def parse_source(name: str, given: Mapping[str, Any]) -> Source:
    """The ``source`` of runtime ``name`` as data; a missing or loose pin is a FleetError naming the key."""
    where = f"llm_runtimes.{name}.source"
    kind = str(given.get("kind") or "")
    refuse_gaps(runtime_gaps({"name": name, "source": given}))
    source = Source(
        kind=kind,
        urls=tuple(given.get("urls") or ()),
        sha256=_hex(where, "sha256", given.get("sha256")),
        url=given.get("url") or "",
        commit=_hex(where, "commit", given.get("commit")),
        path=given.get("path") or "",
        subdir=(given.get("subdir") or "").strip("/"),
        tag=given.get("tag") or "",
        mirrors=tuple(given.get("mirrors") or ()),
        patches=tuple(
            (str(patch.get("url") or ""), _hex(where, "patches.sha256", patch.get("sha256")))
            for patch in given.get("patches") or ()
        ),
    )
    if kind == "archive":
        _require(where, "urls", source.urls, "at least one URL")
        for url in source.urls:
            _require_url(f"{where}.urls", url)
        _require_match(where, "sha256", source.sha256, _SHA256, "64 hexadecimal digits of the archive's sha256")
    elif kind == "git":
        _require(where, "url", source.url, "the repository's URL")
        _require_match(where, "commit", source.commit, _COMMIT, "the full 40 hexadecimal digits of a commit")
    elif kind in ("path", "installed"):
        _require(where, "path", source.path, "an absolute path on the host")
        if not os.path.isabs(source.path):
            raise FleetError(f"{where}.path", expected="an absolute path on the host", found=source.path)
    else:
        raise FleetError(f"{where}.kind", expected="archive, git, path or installed", found=kind or "nothing")
    if source.tag and not _TAG.fullmatch(source.tag):
        raise FleetError(f"{where}.tag", expected="the name of a tag, such as b11434", found=source.tag)
    if source.patches and kind not in ("archive", "git"):
        raise FleetError(
            f"{where}.patches",
            expected="patches of an archive or a commit",
            found=f"kind {kind}",
            remedy="Patch the tree on the host yourself; runtime_build changes no source that it did not fetch",
        )
    for url, sha256 in source.patches:
        _require_url(f"{where}.patches", url)
        _require_match(where, "patches.sha256", sha256, _SHA256, "64 hexadecimal digits of the patch's sha256")
    if ".." in source.subdir.split("/"):
        raise FleetError(f"{where}.subdir", expected="a folder within the tree", found=source.subdir)
    return source


def _hex(where: str, key: str, value: object) -> str:
    """The digits in small letters, "" for none; a number has lost its leading zeros by now."""
    if not isinstance(value, str | None):
        raise FleetError(
            f"{where}.{key} is no text",
            expected="hexadecimal digits",
            found=repr(value),
            remedy="Put it in quotes: YAML reads bare decimal digits as a number",
        )
    return (value or "").lower()


def _require_url(where: str, url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("file", "http", "https"):
        raise FleetError(where, expected="file://, http:// or https:// URLs", found=url or "nothing")


def _require(where: str, key: str, value: object, expected: str) -> None:
    if not value:
        raise FleetError(f"{where}.{key}", expected=expected, found="nothing")


def _require_match(where: str, key: str, value: str, pattern: re.Pattern[str], expected: str) -> None:
    if not pattern.fullmatch(value):
        raise FleetError(f"{where}.{key}", expected=expected, found=value or "nothing")


def source_digest(source: Source) -> str:
    """What pins the source: ``sha256:...``, ``commit:...`` or, for a local tree, ``tree:...`` over its listing.

    Archive and commit are taken from the declaration: no byte is read. ``obtain`` proves them before a build.
    Patches follow with their own digests.
    """
    patched = "".join(f"+{sha256}" for _url, sha256 in source.patches)
    if source.kind == "archive":
        return f"sha256:{source.sha256}{patched}"
    if source.kind == "git":
        return f"commit:{source.commit}{patched}"
    return f"tree:{tree_digest(source.path)}"


def tree_digest(path: str) -> str:
    """sha256 over the sorted ``(relative path, size, mtime_ns)`` of every file below ``path``, or of the one file.

    Contents are not read: an edit that keeps both size and time stamp is not seen. ``.git`` is left out;
    a link counts by where it points, not by what is there.
    """
    if not os.path.lexists(path):
        raise FleetError(f"{path} does not exist", expected="a source tree on this host", remedy="Correct source.path")
    seen = hashlib.sha256()

    def take(relative: str, full: str) -> None:
        if os.path.islink(full):
            entry = f"{relative}\0-> {os.readlink(full)}\n"
        else:
            status = os.stat(full)
            entry = f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n"
        seen.update(entry.encode("utf-8", "surrogateescape"))

    if not os.path.isdir(path):
        take(os.path.basename(path), path)
        return seen.hexdigest()
    for directory, folders, files in os.walk(path):
        folders[:] = sorted(folder for folder in folders if folder != ".git")
        links = [folder for folder in folders if os.path.islink(os.path.join(directory, folder))]
        for file in sorted([*files, *links]):
            full = os.path.join(directory, file)
            take(os.path.relpath(full, path), full)
    return seen.hexdigest()


def obtain(source: Source, work: str, progress: Progress, warnings: list[str]) -> str:
    """The folder with the source's ``CMakeLists.txt``; archive and git trees are made in ``work``/src.

    ``work``/src gets its name only once it is whole and proven, so that a second call after a kill uses it as it
    is or starts over. ``warnings`` collects mirrors that failed before one served.
    """
    if source.kind == "path":
        tree = source.path
    else:
        tree = os.path.join(work, "src")
        if not os.path.isdir(tree):
            part = os.path.join(work, "src.part")
            shutil.rmtree(part, ignore_errors=True)
            if source.kind == "archive":
                archive = os.path.join(work, "archive")
                _fetch(source, archive, progress, warnings)
                progress.update("unpack", force=True)
                _unpack(archive, part)
                os.unlink(archive)
            else:
                progress.update("clone", text=source.url, force=True)
                _from_any(source, part, warnings)
            _patch(source, part, work, progress)
            os.rename(part, tree)
    return _project_folder(tree, source.subdir)


def _project_folder(tree: str, subdir: str) -> str:
    """``tree``/``subdir``; a sole top folder, as release archives have it, is stepped into first."""
    root = _root(tree)
    folder = os.path.join(root, subdir) if subdir else root
    if not os.path.isfile(os.path.join(folder, "CMakeLists.txt")):
        found = sorted(os.listdir(folder))[:12] if os.path.isdir(folder) else "no such folder"
        raise FleetError(
            f"{folder} is no CMake project",
            expected="a CMakeLists.txt",
            found=found,
            remedy="Set source.subdir to the folder below the archive's top folder that holds it",
        )
    return folder


def _root(tree: str) -> str:
    entries = [entry for entry in os.listdir(tree) if entry != ".git"]
    if len(entries) == 1 and os.path.isdir(os.path.join(tree, entries[0])):
        return os.path.join(tree, entries[0])
    return tree


def _patch(source: Source, tree: str, work: str, progress: Progress) -> None:
    """Apply the declared patches (``-p1``, below ``subdir``), each proven by its digest first."""
    for number, (url, sha256) in enumerate(source.patches, 1):
        file = os.path.join(work, f"patch-{number}")
        try:
            found = _download(url, file, progress)
        except (OSError, urllib.error.URLError) as exc:
            raise FleetError(
                f"patch {url} cannot be read",
                expected="a readable file or URL",
                found=getattr(exc, "reason", None) or exc,
                remedy="Correct source.patches; nothing was built and the runtime in use is untouched",
            ) from exc
        if found != sha256:
            raise FleetError(
                f"patch {url} is another one than declared",
                expected=f"sha256 {sha256}",
                found=f"sha256 {found}",
                remedy="Correct source.patches; nothing was built and the runtime in use is untouched",
            )
        root = _root(tree)
        inside = os.path.relpath(os.path.join(root, source.subdir), tree)
        # A repository of its own, so that paths count from here and not from a checkout above or within.
        env = {**os.environ, "LC_ALL": "C.UTF-8", "GIT_DIR": os.path.join(work, "patching.git")}
        run(["git", "init", "--quiet", "--bare"], env=env)
        below = [] if inside == "." else ["--directory", inside]
        argv = ["git", "--work-tree", ".", "apply", *below, file]
        done = run(argv, env=env, cwd=tree, check=False)
        if done.rc != 0:
            raise FleetError(
                f"patch {url} does not apply",
                expected="a patch of this source",
                found=done.tail,
                remedy="Correct source.patches or the source's pin; the runtime in use is untouched",
            )


def _from_any(source: Source, target: str, warnings: list[str]) -> None:
    """Check the commit out from the repository, or from the first of its mirrors that has it (all for an air gap)."""
    faults: list[str] = []
    for url in (source.url, *source.mirrors):
        shutil.rmtree(target, ignore_errors=True)
        try:
            _checkout(url, source, target)
        except FleetError as exc:
            if not source.mirrors:
                raise
            faults.append(exc.message)
            continue
        warnings.extend(f"source skipped: {fault}" for fault in faults)
        return
    raise FleetError(
        f"no repository gave commit {source.commit}",
        expected=f"{source.url} or one of its mirrors",
        found=" ".join(faults),
        remedy="Correct source.commit, source.url or source.mirrors; the runtime in use is untouched",
    )


def _fetch(source: Source, target: str, progress: Progress, warnings: list[str]) -> None:
    """Copy the archive from the first URL that serves it whole; what has another digest is deleted at once."""
    faults: list[str] = []
    for url in source.urls:
        try:
            found = _download(url, target, progress)
        except (OSError, urllib.error.URLError) as exc:
            reason = getattr(exc, "reason", None) or exc
            faults.append(f"{url}: {reason}")
            continue
        if found == source.sha256:
            warnings.extend(f"source skipped: {fault}" for fault in faults)
            return
        os.unlink(target)
        faults.append(f"{url}: sha256 {found}")
    raise FleetError(
        "no URL served the declared source archive",
        expected=f"sha256 {source.sha256}",
        found="; ".join(faults),
        remedy="Correct source.sha256 or source.urls; nothing was built and the runtime in use is untouched",
    )


def _download(url: str, target: str, progress: Progress) -> str:
    """Write what ``url`` serves to ``target``; returns its sha256."""
    digest = hashlib.sha256()
    done = 0
    with contextlib.ExitStack() as stack:
        stream: BinaryIO
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "file":
            local = urllib.request.url2pathname(parts.path)
            stream = stack.enter_context(open(local, "rb"))
            total = os.path.getsize(local)
        else:
            response = stack.enter_context(urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S))
            total = int(response.headers.get("Content-Length") or 0)
            stream = response
        sink = stack.enter_context(open(target, "wb"))
        while block := stream.read(_BLOCK):
            sink.write(block)
            digest.update(block)
            done += len(block)
            progress.update("fetch source", done=done, total=total, unit="B")
    return digest.hexdigest()


def _unpack(archive: str, target: str) -> None:
    """Unpack a tar archive of any compression; a member that would land outside ``target`` is refused first."""
    os.mkdir(target)
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _refuse_member(member)
            if hasattr(tarfile, "data_filter"):
                tar.extractall(target, filter="data")
            else:  # Python 3.11 before 3.11.4: the check above stands alone
                tar.extractall(target)
    except (tarfile.TarError, EOFError) as exc:
        raise FleetError(
            "the source archive does not unpack", expected="a safe tar archive", found=str(exc), remedy="Pin another"
        ) from exc


def _refuse_member(member: tarfile.TarInfo) -> None:
    """Raise a FleetError unless ``member`` is a plain file, folder or link that stays inside."""
    inside = _stays_inside(member.name)
    if member.issym():
        inside = inside and _stays_inside(os.path.join(os.path.dirname(member.name), member.linkname))
    elif member.islnk():
        inside = inside and _stays_inside(member.linkname)
    if not inside or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        shown = f"{member.name} -> {member.linkname}" if member.linkname else member.name
        raise FleetError(
            f"the source archive has a member that is not safe to unpack: {shown}",
            expected="files, folders and links within the tree",
            remedy="Pin another archive; nothing was unpacked",
        )


def _stays_inside(name: str) -> bool:
    return not os.path.isabs(name) and os.path.normpath(name).split(os.sep)[0] != os.pardir


def _checkout(url: str, source: Source, target: str) -> None:
    """Fetch exactly ``source.commit`` and check it out; servers that refuse a bare commit are asked for all refs."""
    env = {**os.environ, "LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0"}

    def git(*argv: str, check: bool = True) -> tuple[int, str]:
        done = run(["git", "-C", target, *argv], env=env, timeout_s=_GIT_TIMEOUT_S, check=check)
        return done.rc, done.stdout.strip() if done.rc == 0 else done.tail

    os.mkdir(target)
    git("init", "--quiet")
    if source.tag:
        _require_tag(source, url, *git("ls-remote", "--", url, f"refs/tags/{source.tag}*", check=False))
    rc, said = git("fetch", "--quiet", "--depth", "1", "--", url, source.commit, check=False)
    if rc != 0:
        rc, said = git("fetch", "--quiet", "--", url, "+refs/*:refs/remotes/origin/*", check=False)
    if rc == 0:
        rc, said = git("checkout", "--quiet", "--detach", source.commit, check=False)
    if rc != 0:
        raise FleetError(
            f"commit {source.commit} cannot be had from {url}",
            expected="a repository that holds it",
            found=said,
            remedy="Correct source.commit or source.url; nothing was built and the runtime in use is untouched",
        )
    head = git("rev-parse", "HEAD")[1]
    if head != source.commit:
        raise FleetError(f"{url} gave another commit", expected=source.commit, found=head)


def _require_tag(source: Source, url: str, rc: int, said: str) -> None:
    """The remote's tag must lead to the declared commit; an annotated tag counts by what it points at."""
    refs = dict(line.split("\t", 1)[::-1] for line in said.splitlines() if "\t" in line) if rc == 0 else {}
    name = f"refs/tags/{source.tag}"
    found = refs.get(f"{name}^{{}}") or refs.get(name)
    if found != source.commit:
        raise FleetError(
            f"tag {source.tag} of {url} is not the declared commit",
            expected=source.commit,
            found=found or ("no such tag" if rc == 0 else said),
            remedy="Correct source.tag or source.commit: a tag that moved since is a reason to look twice",
        )
