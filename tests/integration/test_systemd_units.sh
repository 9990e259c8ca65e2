#!/bin/sh
# The installed units as systemd-analyze sees them: without a word against them, and with little
# exposure. Also: what goes where, and the example settings.
# usage: test_systemd_units.sh BUILD-DIRECTORY PREFIX
set -eu
build=$(realpath "$1")
prefix=$2
exposure_most=40 # tenths; systemd calls up to 4.4 "OK"

command -v systemd-analyze >/dev/null || {
    echo "SKIP: there is no systemd-analyze"
    exit 77
}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dllmd-test.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

meson install -C "$build" --no-rebuild --quiet --destdir "$tmp" >/dev/null
for file in bin/dllmd libexec/dllmd/dllm-worker lib/systemd/system/dllmd.service \
    lib/systemd/system/dllm-worker@.service lib/systemd/system/dllm.slice \
    lib/sysusers.d/dllmd.conf lib/tmpfiles.d/dllmd.conf share/doc/dllmd/examples/dllmd.json; do
    [ -f "$tmp$prefix/$file" ] || fail "$prefix/$file is not installed"
done
[ -n "$(find "$tmp" -path '*/polkit-1/rules.d/dllmd.rules')" ] || fail "the polkit rule is not installed"

# The programs that the units name lie below $tmp here.
units=$tmp$prefix/lib/systemd/system
sed -i "s|=$prefix/|=$tmp$prefix/|" "$units"/*.service
for unit in dllmd.service dllm-worker@.service dllm-worker@job-1-attempt-1-rank-0.service dllm.slice; do
    said=$(cd "$units" && systemd-analyze verify "./$unit" 2>&1) || fail "$unit is refused"
    [ -z "$said" ] || fail "$unit: $said"
done
# That silence means something:
sed 's/^ProtectSystem=.*/ProtectSystem=perhaps/' "$units/dllmd.service" >"$tmp/dllmd.service"
[ -n "$(systemd-analyze verify "$tmp/dllmd.service" 2>&1)" ] || fail "verify takes anything"

for unit in dllmd.service dllm-worker@.service; do
    systemd-analyze security --offline=true --threshold=$exposure_most --no-pager \
        "$units/$unit" >"$tmp/security" 2>&1 || {
        cat "$tmp/security"
        fail "$unit is exposed too much"
    }
    grep 'Overall exposure' "$tmp/security"
done

systemd-sysusers --dry-run "$tmp$prefix/lib/sysusers.d/dllmd.conf" >"$tmp/users" 2>&1 ||
    fail "the users: $(cat "$tmp/users")"
said=$("$tmp$prefix/bin/dllmd" --config "$tmp$prefix/share/doc/dllmd/examples/dllmd.json" \
    --check-config 2>&1) || fail "the example settings: $said"

[ $failures -eq 0 ] || exit 1
echo "PASS"
