#!/usr/bin/env bash
# Installs steadyhand as a systemd service on an edge box, or takes it away again.
set -euo pipefail

readonly BASE=/opt/steadyhand ETC=/etc/steadyhand STATE=/var/lib/steadyhand
readonly CACHE=/var/cache/steadyhand UNITS=/etc/systemd/system OWNER=steadyhand
readonly LINK=/usr/local/bin/steadyhand SHARE=$BASE/share DOCS=$BASE/share/doc
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
readonly CHECKOUT=${HERE%/deploy/systemd}

help() {
  cat <<TEXT
Usage: install.sh [options]              install or upgrade; safe to run again
       install.sh --instance NAME ...    and prepare one plant
       install.sh --uninstall [--purge]  take it away; --purge takes the data too

What it makes
  $OWNER              a user without login who owns nothing but its data
  $BASE          the program in an environment of its own (no torch), one folder per version
  $UNITS/steadyhand@.service
  $ETC/NAME      one folder per plant: steadyhand.yaml, keys/, pki/, credentials/
  $STATE/NAME  what the service writes: the journal and its state
  $CACHE  native code, compiled once per machine
  $SHARE    documentation with a runbook for each alarm, rules for Prometheus, boards for Grafana
A running service goes on with its old version until you restart it. Files of yours are never
overwritten.

Options
  --instance NAME   a plant: small letters, digits, - and _ (may be given several times)
  --allow ADDRESS   the plant's address or network, such as 192.168.10.5 or 10.0.0.0/24: the only
                    one beyond this machine that the instances of this call may talk to
  --from WHEEL      install this wheel instead of the checkout this script lies in
  --wheels FOLDER   take all packages from there and nothing from the network; fill it with
                      pip download --dest FOLDER --constraint constraints.txt \\
                        'setuptools>=77' 'steadyhand[cpu,opcua] @ file:///path/to/checkout'
  --runbooks URL    where your people read the runbooks; goes into alarms and boards
                    (file://$DOCS/runbooks)
  --gpu             for a policy on an NVIDIA GPU (see gpu.conf beside this script)
  --python FILE     Python 3.11 or newer with venv (python3)
  --no-warm         do not compile the native code now; the first start then takes longer
  --dry-run         only say what would be done
  --uninstall       stop and disable all instances, remove program, unit and cache; the data
                    ($ETC, $STATE, user $OWNER) stay
  --purge           with --uninstall: the data too. Nothing brings the journal back
  --help            this text

Then, for a plant called north:
  edit $ETC/north/steadyhand.yaml; put our key and the plant's password into
  $ETC/north/credentials/private_key and .../password
  steadyhand status $ETC/north/steadyhand.yaml      once it runs
  systemctl enable --now steadyhand@north
TEXT
}

say() { printf 'steadyhand: %s\n' "$*"; }
die() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}

# Everything that changes the machine goes through here.
run() {
  if ((dry)); then
    printf '  would run:'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# Write stdin to file $1 with mode $2 and owner $3, if it differs.
put() {
  local text
  text=$(cat; printf x)
  if [[ -f $1 && $(cat "$1"; printf x) == "$text" ]]; then return; fi
  say "writes $1"
  if ((dry)); then return; fi
  install -D -m "$2" -o "${3%:*}" -g "${3#*:}" /dev/null "$1.new"
  printf %s "${text%x}" >"$1.new"
  mv -f "$1.new" "$1"
}

# Make folder $1 with mode $2 and owner $3, if it is not there.
folder() { [[ -d $1 ]] || run install -d -m "$2" -o "${3%:*}" -g "${3#*:}" "$1"; }

systemd_version() { systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p'; }
reload_units() { if [[ -d /run/systemd/system ]]; then run systemctl daemon-reload; fi; }

instances() {
  systemctl list-units --all --plain --no-legend 'steadyhand@*.service' 2>/dev/null | cut -d' ' -f1
  local enabled
  for enabled in "$UNITS"/*.wants/steadyhand@*.service; do
    if [[ -L $enabled ]]; then basename "$enabled"; fi
  done
}

# -- installing ------------------------------------------------------------------------------------

make_user() {
  if getent passwd "$OWNER" >/dev/null; then return; fi
  say "makes user $OWNER"
  run useradd --system --user-group --no-create-home --home-dir "$STATE" \
    --shell /usr/sbin/nologin "$OWNER"
}

# What the checkout consists of, as `tar` takes it.
sources() { (cd "$CHECKOUT" && printf '%s\n' pyproject.toml README.md LICENSE controllers adapters runtime training); }

# One name per content, so that an environment is never changed while something runs from it.
version_id() {
  {
    "$python" -c 'import sys; print(sys.version)'
    printf '%s\n' "$extra"
    if [[ -n $from ]]; then
      cat "$from"
    else
      cat "$CHECKOUT/constraints.txt"
      (cd "$CHECKOUT" && sources | xargs -I{} find {} -type f -not -path '*/__pycache__/*' -print0 |
        sort -z | xargs -0 sha256sum)
    fi
  } | sha256sum | cut -c1-12
}

make_environment() {
  local id target packages build pip
  id=$(version_id)
  target=$BASE/$id
  if [[ -f $target/complete ]]; then
    say "$target is there already"
  else
    say "makes $target"
    if ((dry)); then return; fi
    rm -rf "$target" # what an interrupted run left
    install -d -m 0755 "$BASE"
    "$python" -m venv "$target"
    pip=("$target/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-compile)
    if [[ -n $wheels ]]; then pip+=(--no-index --find-links "$wheels"); fi
    if [[ -f $CHECKOUT/constraints.txt ]]; then pip+=(--constraint "$CHECKOUT/constraints.txt"); fi
    packages=$from
    if [[ -z $from ]]; then
      # built from a copy: building writes into its folder, and the checkout is not ours
      build=$(mktemp -d)
      sources | tar -C "$CHECKOUT" --exclude=__pycache__ -cf - -T - | tar -C "$build" -xf -
      packages=$build
      "${pip[@]}" 'setuptools>=77'
      pip+=(--no-build-isolation)
    fi
    "${pip[@]}" "$packages[$extra]"
    if [[ -n ${build-} ]]; then rm -rf "$build"; fi
    # on all cores, unlike pip; files that are templates and no Python do not matter
    "$target/bin/python" -m compileall -qq -j 0 "$target/lib" || true
    touch "$target/complete"
    made=1
  fi
  if [[ $(readlink "$BASE/bin" || true) != "$id/bin" ]]; then run ln -sfn "$id/bin" "$BASE/bin"; fi
  if [[ -w ${LINK%/*} && ! -e $LINK && ! -L $LINK ]]; then run ln -s "$BASE/bin/steadyhand" "$LINK"; fi
  remove_older "$id"
}

# The version before stays, for a way back; those before it go, unless something runs from them.
remove_older() {
  local old count=0
  while read -r old; do
    if [[ $old == "$BASE/$1" ]] || ((++count <= 1)) || in_use "$old"; then continue; fi
    say "removes $old"
    run rm -rf "$old" "$CACHE/native" # what is still needed of that is compiled again
  done < <(find "$BASE" -mindepth 1 -maxdepth 1 -type d -not -path "$SHARE" -printf '%T@ %p\n' 2>/dev/null | sort -rn | cut -d' ' -f2-)
}

in_use() {
  local program
  for program in /proc/[0-9]*/cmdline; do
    if { tr '\0' '\n' <"$program" | head -n 1 | grep -qF "$1/"; } 2>/dev/null; then return 0; fi
  done
  return 1
}

# The same plant as equations in the process, driven by its policy.
readonly EQUATIONS='
import re, sys
kept = ("schema_version", "name", "plant", "period", "bundle", "fallback")
for block in re.split(r"(?m)^(?=[a-z_]+:)", sys.stdin.read()):
    if block.startswith(tuple(f"{name}:" for name in kept)):
        print(block, end="")
print("link: {kind: sim}\nmodes: {initial: full, clean_ticks: 1}\njournal: {directory: ../var/journal}")
'

# Compile the native code as the service would, by some ticks in front of a plant of equations.
warm_up() {
  if ((dry)) || [[ ! -d $CHECKOUT/configs ]]; then return; fi
  local try config
  folder "$CACHE" 0750 "$OWNER:$OWNER"
  folder "$CACHE/native" 0750 "$OWNER:$OWNER"
  try=$(mktemp -d)
  install -d -o "$OWNER" -g "$OWNER" "$try/var"
  for config in "$CHECKOUT"/configs/*/steadyhand.yaml; do
    cp -rT "$(dirname "$config")" "$try/plant"
    "$BASE/bin/python" -c "$EQUATIONS" <"$config" >"$try/plant/steadyhand.yaml"
    say "compiles native code for $(basename "$(dirname "$config")")"
    (cd / && as_owner "$BASE/bin/steadyhand" run --quiet --max-ticks 30 "$try/plant/steadyhand.yaml") ||
      say "that failed; the first start compiles what it needs"
    rm -rf "$try/plant" "$try/var/"*
  done
  rm -rf "$try"
}

as_owner() {
  chmod -R go+rX "$try"
  env -i PATH=/usr/bin:/bin HOME=/ NUMBA_CACHE_DIR="$CACHE/native" PYTHONDONTWRITEBYTECODE=1 \
    setpriv --reuid "$OWNER" --regid "$OWNER" --clear-groups --no-new-privs -- "$@"
}

# What is read when nothing else works any more, and what Prometheus and Grafana take from here.
install_pages() {
  if [[ ! -d $CHECKOUT/docs || ! -d $CHECKOUT/deploy/prometheus || ! -d $CHECKOUT/deploy/grafana ]]; then
    say "no documentation, rules and boards: this script lies in no checkout"
    return
  fi
  local made file
  made=$(mktemp -d)
  install -d "$made/share/grafana"
  cp -r "$CHECKOUT/docs" "$made/share/doc"
  cp -r "$CHECKOUT/deploy/prometheus" "$made/share/prometheus"
  cp -r "$CHECKOUT/deploy/grafana/dashboards" "$CHECKOUT/deploy/grafana/provisioning" "$made/share/grafana"
  while IFS= read -r -d '' file; do
    sed -i "s|file://$DOCS/runbooks|$runbooks|g" "$file"
  done < <(find "$made/share/prometheus" "$made/share/grafana" -type f -print0)
  chmod -R u=rwX,go=rX "$made/share"
  if ! diff -rq "$made/share" "$SHARE" >/dev/null 2>&1; then
    say "writes $SHARE"
    run rm -rf "$SHARE"
    run mv "$made/share" "$SHARE"
  fi
  rm -rf "$made"
}

# One plant's folder, from the example, with the places of a service.
make_instance() {
  local name=$1 example=$CHECKOUT/configs/thermal_storage here=$ETC/$1
  folder "$ETC" 0755 root:root
  folder "$here" 0750 "root:$OWNER"
  folder "$here/credentials" 0700 root:root
  folder "$here/keys" 0750 "root:$OWNER"
  folder "$here/pki" 0750 "root:$OWNER"
  if [[ ! -e $here/steadyhand.yaml && -d $example ]]; then
    sed -e "s|^name: .*|name: $name|" \
      -e "s|\$schema=../schema.json|\$schema=schema.json|" \
      -e "s|private_key: .*|private_key: \"\${CREDENTIALS_DIRECTORY}/private_key\"|" \
      -e "s|password_file: .*|password_file: \"\${CREDENTIALS_DIRECTORY}/password\"|" \
      -e "s|directory: var/journal|directory: $STATE/$name/journal|" \
      -e "s|socket: var/operator.sock|socket: /run/steadyhand/$name/operator.sock|" \
      "$example/steadyhand.yaml" | put "$here/steadyhand.yaml" 0640 "root:$OWNER"
    put "$here/schema.json" 0640 "root:$OWNER" <"$CHECKOUT/configs/schema.json"
    local file
    for file in "$example"/*.shb "$example"/keys/*; do
      if [[ -f $file ]]; then run install -m 0640 -g "$OWNER" "$file" "$here/${file#"$example"/}"; fi
    done
  fi
  if ((${#allow[@]})); then
    {
      printf '[Service]\n'
      printf 'IPAddressAllow=%s\n' "${allow[@]}"
    } | put "$UNITS/steadyhand@$name.service.d/plant.conf" 0644 root:root
  fi
}

do_install() {
  "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "$python is no Python 3.11 or newer with venv: apt-get install python3-venv, or --python FILE"
  if [[ -n $from ]]; then
    [[ -f $from && $from == *.whl ]] || die "--from $from: no wheel"
  else
    [[ -f $CHECKOUT/pyproject.toml ]] || die "this script lies in no checkout: name a wheel with --from"
  fi
  make_user
  make_environment
  if ((warm && made)); then warm_up; fi
  install_pages
  put "$UNITS/steadyhand@.service" 0644 root:root <"$HERE/steadyhand@.service"
  if (($(systemd_version) >= 254)); then
    put "$UNITS/steadyhand@.service.d/backoff.conf" 0644 root:root <"$HERE/backoff.conf"
  fi
  local name
  for name in "${names[@]}"; do make_instance "$name"; done
  reload_units
  for name in "${names[@]}"; do
    say "$ETC/$name is ready to be edited; then: systemctl enable --now steadyhand@$name"
  done
}

# -- taking it away --------------------------------------------------------------------------------

do_uninstall() {
  local name
  while read -r name; do
    say "stops and disables $name"
    run systemctl disable --now --quiet "$name" || true
    run systemctl reset-failed "$name" 2>/dev/null || true
  done < <(instances | sort -u)
  run rm -f "$UNITS/steadyhand@.service" "$UNITS/steadyhand@.service.d/backoff.conf" \
    "$UNITS"/steadyhand@*.service.d/plant.conf
  for name in "$UNITS"/steadyhand@*.service.d; do
    if [[ -d $name ]]; then run rmdir --ignore-fail-on-non-empty "$name"; fi
  done
  run rm -rf "$BASE" "$CACHE" /run/steadyhand
  if [[ -L $LINK && $(readlink "$LINK") == "$BASE/"* ]]; then run rm -f "$LINK"; fi
  if ((purge)); then
    run rm -rf "$ETC" "$STATE" "$UNITS"/steadyhand@*.service.d
    if getent passwd "$OWNER" >/dev/null; then run userdel "$OWNER"; fi
    if getent group "$OWNER" >/dev/null; then run groupdel "$OWNER"; fi
    reload_units
    say "nothing is left"
  else
    reload_units
    say "data and configuration are still in $ETC and $STATE, and belong to user $OWNER"
  fi
}

# -- the command line ------------------------------------------------------------------------------

dry=0 purge=0 warm=1 made=0 uninstall=0 from='' wheels='' python=python3 extra=cpu,opcua
runbooks=file://$DOCS/runbooks
names=() allow=()
value() { [[ -n ${2-} ]] || die "$1 needs a value; see --help"; }
while (($#)); do
  case $1 in
    --instance)
      value "$@"
      [[ $2 =~ ^[a-z][a-z0-9_-]{0,62}$ ]] || die "--instance $2: small letters, digits, - and _"
      names+=("$2")
      shift
      ;;
    --allow)
      value "$@"
      [[ $2 =~ ^[0-9a-fA-F.:]+(/[0-9]+)?$ ]] || die "--allow $2: an address such as 10.0.0.5 or 10.0.0.0/24"
      allow+=("$2")
      shift
      ;;
    --from) value "$@" && from=$(realpath -m "$2") && shift ;;
    --wheels) value "$@" && wheels=$(realpath -e "$2") && shift ;;
    --python) value "$@" && python=$2 && shift ;;
    --runbooks)
      value "$@"
      [[ $2 =~ ^[a-z]+://[][A-Za-z0-9._~:/@%+,=?-]+$ ]] || die "--runbooks $2: an address such as https://wiki.example/steadyhand"
      runbooks=${2%/}
      shift
      ;;
    --gpu) extra=gpu,opcua ;;
    --no-warm) warm=0 ;;
    --dry-run) dry=1 ;;
    --uninstall) uninstall=1 ;;
    --purge) purge=1 ;;
    -h | --help)
      help
      exit 0
      ;;
    *) die "$1 is not understood; see --help" ;;
  esac
  shift
done
if ((${#allow[@]} && !${#names[@]})); then die "--allow belongs to an --instance"; fi
if ((purge && !uninstall)); then die "--purge only with --uninstall"; fi
if ((EUID != 0 && !dry)); then die "needs root: sudo $0 ..., or look first with --dry-run"; fi
command -v systemctl >/dev/null || die "there is no systemd on this machine"
umask 022
if ((uninstall)); then do_uninstall; else do_install; fi
