#!/usr/bin/env bash
# Installs what the system tests need: Debian packages of packages.txt, npm packages of package.json.
# Does nothing where all is there. Where it cannot, it says so in one line and ends well: the tests
# that need what is missing are skipped, each with its reason.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'system tests: %s\n' "$*"; }

missing=()
while read -r package _; do
  [[ -z $package || $package == \#* ]] && continue
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] ||
    missing+=("$package")
done <packages.txt

if ((${#missing[@]})); then
  if ((EUID != 0)); then
    say "not root, so not installed: ${missing[*]}"
  elif ! command -v apt-get >/dev/null; then
    say "no apt-get here, so not installed: ${missing[*]}"
  else
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >install.log 2>&1; then
      say "apt-get failed (see tests/system/install.log), so not installed: ${missing[*]}"
    fi
  fi
fi

if [[ -f package-lock.json ]]; then
  if ! command -v npm >/dev/null; then
    say "no npm here, so not installed: the packages of package.json"
  elif [[ ! -f node_modules/.package-lock.json || node_modules/.package-lock.json -ot package-lock.json ]]; then
    npm ci --no-audit --no-fund --silent >npm.log 2>&1 || say "npm ci failed (see tests/system/npm.log)"
  fi
fi
exit 0
