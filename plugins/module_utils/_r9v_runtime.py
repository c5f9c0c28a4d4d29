# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An R9V runtime on its host: the fork at its commit, the image by its manifest's digest, the shim, their record."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._era import blueprint_digest, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_link,
    atomic_write,
    make_dirs,
    read_json,
    read_optional,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import refuse_gaps, runtime_gaps
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Digest, hash_file

__all__ = ["SHIM", "Request", "carry_out", "parse_request", "plan"]

SHIM = ".podman-shim/docker"  # below the checkout; the launcher alone has it in its PATH
_GIT_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Request:
    """One runtime as declared.

    ``digest`` is the image's manifest digest as hex, or its beginning; ``url`` and ``commit`` are empty for a checkout
    that is taken as it is, ``archive`` for an image that was loaded before.
    """

    name: str
    user: str
    image: str
    digest: str
    checkout: str
    url: str
    commit: str
    includes: tuple[str, ...]
    archive: str
    archive_sha256: str
    shim: str
    prefix: str

    @property
    def launch(self) -> str:
        """The fork's own launcher."""
        return os.path.join(self.checkout, "scripts", "launch.sh")

    @property
    def link(self) -> str:
        """The name under which endpoints know the runtime."""
        return os.path.join(self.prefix, self.name)


def parse_request(params: Mapping[str, Any]) -> Request:
    """From an entry of ``llm_runtimes`` with ``user``, ``shim`` and ``prefix``; a FleetError names the wrong key."""
    source, name = params["source"], str(params["name"])
    where = f"llm_runtimes.{name}.source"
    if source.get("kind") != "bundle":
        raise FleetError(f"{where}.kind", expected="bundle, for engine r9v", found=source.get("kind"))
    refuse_gaps(runtime_gaps(params))
    digest = Digest.declared(where, source.get("sha256"), source.get("sha256_prefix"))
    if not source.get("checkout"):
        raise FleetError(f"{where}.checkout", expected="the folder of the fork's checkout", found="none")
    packed = (
        Digest.declared(f"{where}.archive_sha256", source.get("archive_sha256"), None)
        if source.get("archive")
        else None
    )
    return Request(
        name=name,
        user=str(params["user"]),
        image=str(source["image"]),
        digest=digest.hex,
        checkout=str(source["checkout"]).rstrip("/"),
        url=str(source.get("url") or ""),
        commit=str(source.get("commit") or ""),
        includes=tuple(source.get("includes") or ()),
        archive=str(source.get("archive") or ""),
        archive_sha256=packed.hex if packed else "",
        shim=str(params["shim"]),
        prefix=str(params.get("prefix") or "/opt/llm-fleet/runtimes"),
    )


def _git(request: Request, *argv: str, check: bool = True) -> tuple[int, str]:
    """git in the checkout, as the user to whom it belongs."""
    entry = pwd.getpwnam(request.user)
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": entry.pw_dir,
        "LC_ALL": "C.UTF-8",
        "GIT_TERMINAL_PROMPT": "0",
    }
    ids = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    switch = [] if entry.pw_uid == os.geteuid() else ["setpriv", *ids]
    done = run([*switch, "git", "-C", request.checkout, *argv], env=env, timeout_s=_GIT_TIMEOUT_S, check=check)
    return done.rc, done.stdout.strip() if done.rc == 0 else done.tail


def _head(request: Request) -> str:
    """The commit that is checked out, "" where there is no checkout."""
    return _git(request, "rev-parse", "HEAD")[1] if os.path.isdir(os.path.join(request.checkout, ".git")) else ""


def _record(request: Request) -> dict[str, Any]:
    """What ``build.json`` must say; its ``digest`` is over everything that decides what is run."""
    told = {
        "engine": "r9v",
        "server_bin": request.launch,
        "version": request.digest,
        "image": request.image,
        "commit": _head(request),
        "shim": sha256_text(request.shim),
    }
    return {**told, "digest": blueprint_digest(told)}


def _tree(request: Request, record: Mapping[str, Any]) -> str:
    return os.path.join(request.prefix, f"{request.name}@{record['digest'][:12]}")


def _checkout_work(request: Request) -> list[str]:
    head = _head(request)
    if not head:
        return [f"{request.checkout} is to be checked out"]
    if request.commit and not head.startswith(request.commit):
        return [f"{request.checkout}: {head[:12]} -> {request.commit[:12]}"]
    return []


def plan(request: Request) -> list[str]:
    """What is to be done, each in words; [] when all is as declared. Reads only."""
    work = _checkout_work(request)
    if read_optional(os.path.join(request.checkout, SHIM)) != request.shim.encode():
        work.append("the shim is to be installed")
    if Podman(request.user).image(request.digest) is None:
        work.append(f"image sha256:{request.digest} is to be loaded")
    if not work:
        _require_commits(request)
        record = _record(request)
        if read_json(os.path.join(request.link, "build.json")) != record:
            work.append("its record is to be written")
    return work


def _require_commits(request: Request) -> None:
    """Every listed commit is in the checkout's history, and its launcher can be run."""
    for patch in request.includes:
        rc, said = _git(request, "merge-base", "--is-ancestor", patch, "HEAD", check=False)
        if rc != 0:
            raise FleetError(
                f"{request.checkout} lacks patch {patch}",
                expected=f"it among the ancestors of {_head(request)[:12]}",
                found=said or "it is none",
                remedy="Check out a commit that has it, or correct source.includes",
            )
    if not os.access(request.launch, os.X_OK):
        raise FleetError(
            f"{request.launch}", expected="the fork's launcher", found="no program", remedy="See its checkout"
        )


def _check_out(request: Request) -> None:
    """Clone, or move a clean checkout to the commit; what somebody changed there is left alone."""
    entry = pwd.getpwnam(request.user)
    if not _head(request):
        if not request.url or not request.commit:
            raise FleetError(
                f"{request.checkout} is no checkout",
                expected="the fork's checkout, or url and commit to make one from",
                found="no .git in it" if os.path.isdir(request.checkout) else "no such folder",
                remedy=f"Declare them under llm_runtimes.{request.name}.source",
            )
        make_dirs(request.checkout, uid=entry.pw_uid, gid=entry.pw_gid)
        _git(request, "init", "--quiet")
    elif _git(request, "status", "--porcelain", "--untracked-files=no")[1]:
        raise FleetError(
            f"{request.checkout} was changed by hand",
            expected="a checkout without changes, to move to another commit",
            found=_git(request, "status", "--porcelain", "--untracked-files=no")[1].splitlines()[0],
            remedy="Commit the change there and declare that commit, or take it back",
        )
    rc, said = _git(request, "cat-file", "-e", f"{request.commit}^{{commit}}", check=False)
    if rc != 0 and request.url:
        rc, said = _git(
            request, "fetch", "--quiet", "--", request.url, "+refs/heads/*:refs/remotes/fleet/*", check=False
        )
    if rc == 0:
        rc, said = _git(request, "checkout", "--quiet", "--detach", request.commit, check=False)
    if rc != 0:
        raise FleetError(
            f"commit {request.commit} of {request.checkout}",
            expected=f"a commit that is there, or to be had from {request.url or '(no url declared)'}",
            found=said,
            remedy="Correct source.commit or source.url; what serves is untouched",
        )


def _load(request: Request, podman: Podman) -> None:
    if not request.archive:
        raise FleetError(
            f"image sha256:{request.digest} is not among {request.user}'s images",
            expected="the image, loaded before, or an archive to load it from",
            found="neither",
            remedy=f"Declare llm_runtimes.{request.name}.source.archive and archive_sha256",
        )
    if not os.path.isfile(request.archive):
        raise FleetError(f"image archive {request.archive}", expected="a file on this host", found="none")
    digest = hash_file(request.archive)[0]
    if digest != request.archive_sha256:
        raise FleetError(
            f"image archive {request.archive}",
            expected=f"sha256 {request.archive_sha256}",
            found=f"sha256 {digest}",
            remedy="Fetch it again; nothing was loaded",
        )
    said = podman.load(request.archive)
    if podman.image(request.digest) is None:
        raise FleetError(
            f"image archive {request.archive} holds another image",
            expected=f"manifest sha256:{request.digest}",
            found=said,
            remedy="Correct source.sha256, or have the archive of the declared image",
        )


def carry_out(request: Request, progress: Progress) -> list[str]:
    """Do what :func:`plan` says; the link is moved last. Returns what was done."""
    work = plan(request)
    if not work:
        return []
    entry, podman = pwd.getpwnam(request.user), Podman(request.user)
    if _checkout_work(request):
        progress.update("check out the fork", text=request.url, force=True)
        _check_out(request)
    _require_commits(request)
    shim = os.path.join(request.checkout, SHIM)
    if read_optional(shim) != request.shim.encode():
        make_dirs(os.path.dirname(shim), uid=entry.pw_uid, gid=entry.pw_gid)
        atomic_write(shim, request.shim.encode(), mode=0o755, uid=entry.pw_uid, gid=entry.pw_gid)
    if podman.image(request.digest) is None:
        progress.update("load the image", text=request.archive, force=True)
        _load(request, podman)
    record = _record(request)
    tree = _tree(request, record)
    make_dirs(tree)
    atomic_write(os.path.join(tree, "build.json"), (json.dumps(record, indent=2) + "\n").encode())
    atomic_link(os.path.basename(tree), request.link)
    return work
