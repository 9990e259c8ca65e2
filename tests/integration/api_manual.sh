#!/bin/sh
# The manual pages: mandoc finds nothing wrong, they have each option that --help has and each
# setting that there is, and no other; --help fits on a terminal.
. "$(dirname "$0")/lib.sh"

man=$here/../../docs/man
if command -v mandoc >/dev/null; then
    for page in "$man"/*; do
        check "$(basename "$page"): $(mandoc -T lint -W warning "$page")" -z "$(mandoc -T lint -W warning "$page")"
        check "$(basename "$page") is wide" "$(mandoc -T utf8 -O width=78 "$page" | sed 's/.\x08//g' | awk 'length > 80' | wc -l)" = 0
    done
else
    echo "mandoc is not here: the pages' syntax was not checked"
fi

options() {
    "$1" --help | grep -oE '(^|[^a-z])--[a-z][a-z-]*' | tr -d '[]| ' | sort -u
}
documented() {
    grep -oE 'Fl -[a-z][a-z-]*' "$1" | sed 's/Fl -/--/' | sort -u
}
for program in "$dllmd" "$worker"; do
    name=$(basename "$program")
    check "$name: options" "$(options "$program" | tr '\n' ' ')" = "$(documented "$man/$name.8" | tr '\n' ' ')"
    check "$name: --help is wide" "$("$program" --help | awk 'length > 80' | wc -l)" = 0
done

printf '{"nothing": 1}' >"$tmp/bad.json"
"$dllmd" --config "$tmp/bad.json" --check-config 2>&1 | sed -n 's/.*there are //p' | tr -d ' ' | tr , '\n' |
    sort >"$tmp/settings"
sed -n 's/^\.It Cm //p' "$man/dllmd.json.5" | tr -d ' ' | tr , '\n' | sort >"$tmp/documented"
check "settings" "$(wc -l <"$tmp/settings")" -ge 15
check "settings in the page: $(diff "$tmp/settings" "$tmp/documented")" -z "$(diff "$tmp/settings" "$tmp/documented")"
for key in $(cat "$tmp/settings"); do
    check "$key in daemon.md" "$(grep -c "\`$key\`" "$man/../daemon.md")" -ge 1
done

finish
