#!/usr/bin/env bash
# Installs what the system tests need: Debian packages of packages.txt, npm packages of package.json.
# Does nothing where all is there: exit status 0. Where it cannot, it says so in one line and ends
# with 3: the tests that need what is missing are skipped, each with its reason.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'system tests: %s\n' "$*"; }
status=0
lack() { say "$@"; status=3; }

missing=()
while read -r package _; do
  [[ -z $package || $package == \#* ]] && continue
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] ||
    missing+=("$package")
done <packages.txt

if ((${#missing[@]})); then
  if ((EUID != 0)); then
    lack "not root, so not installed: ${missing[*]}"
  elif ! command -v apt-get >/dev/null; then
    lack "no apt-get here, so not installed: ${missing[*]}"
  else
    export DEBIAN_FRONTEND=noninteractive
    # What is installed here runs when a test starts it, not by itself, now or at the next boot.
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
      printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
      chmod 755 /usr/sbin/policy-rc.d
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >install.log 2>&1; then
      lack "apt-get failed (see tests/system/install.log), so not installed: ${missing[*]}"
    fi
    for package in "${missing[@]}"; do
      case $package in prometheus*) rm -f "/etc/systemd/system/multi-user.target.wants/$package.service" ;; esac
    done
  fi
fi

if [[ -f package-lock.json ]]; then
  if ! command -v npm >/dev/null; then
    lack "no npm here, so not installed: the packages of package.json"
  elif [[ ! -f node_modules/.package-lock.json || node_modules/.package-lock.json -ot package-lock.json ]]; then
    npm ci --no-audit --no-fund --silent >npm.log 2>&1 || lack "npm ci failed (see tests/system/npm.log)"
  fi
fi
exit "$status"
