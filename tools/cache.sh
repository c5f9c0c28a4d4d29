# shellcheck shell=bash
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Where the commands keep what they make for later; read by tools/common.sh and by testhost. The inventories of the test
# hosts and molecule/shared/fleet.py say the same in their own languages.
LLM_FLEET_CACHE=${LLM_FLEET_CACHE:-$HOME/.cache/llm-fleet}
# make clean and testhost purge remove folders with such common names as ccache in it: it must be nobody else's.
if [[ ! $LLM_FLEET_CACHE =~ ^/(.*/)?[^/]*llm-fleet[^/]*/?$ ]]; then
    printf 'error: LLM_FLEET_CACHE is %s: expected the absolute path of a folder of its own with llm-fleet in its name, such as %s\n' \
        "$LLM_FLEET_CACHE" "$HOME/.cache/llm-fleet" >&2
    exit 1
fi
export LLM_FLEET_CACHE=${LLM_FLEET_CACHE%/}
