#!/bin/sh
# Tokens: every route, as the table has them (openapi.json says x-role), against no token, wrong,
# expired and revoked ones, and each role. What is refused says what is needed; what is let in is
# known by name. Besides: pages of other sites, names that point here, and too many requests.
. "$(dirname "$0")/lib.sh"

settings() {
    jq -n --arg tmp "$tmp" '{roots: [$tmp], slots: 4, stop_timeout_s: 1, term_timeout_s: 1,
        log_level: "debug"} + '"$1" >"$tmp/dllmd.json"
}
# ask TOKEN CURL-OPTION...: "" sends none; sets $status, $tmp/answer, $tmp/head
ask() {
    token=$1
    shift
    [ -z "$token" ] || set -- -H "Authorization: Bearer $token" "$@"
    : >"$tmp/head"
    status=$(curl -sS -D "$tmp/head" -o "$tmp/answer" -w '%{http_code}' "$@")
}
header() {
    sed -n "s/^$1: *//Ip" "$tmp/head" | tr -d '\r'
}
says() {
    grep -cF -- "$1" "$tmp/answer" || true
}

# ---- The first token ----
settings '{auth: true}'
admin=$("$dllmd" --config "$tmp/dllmd.json" --state "$state" --create-admin-token 2>"$tmp/note")
check "the token alone on standard output" "$(echo "$admin" | grep -cE '^dllmd_[A-Za-z0-9_-]{43}$')" = 1
check "not again in the note" "$(grep -cF "$admin" "$tmp/note" || true)" = 0
start_daemon
second=$("$dllmd" --config "$tmp/dllmd.json" --state "$state" --create-admin-token 2>"$tmp/note")
check "another while the daemon runs" "$(grep -c '"admin-2"' "$tmp/note")" = 1
ask "$second" "$URL/v1/tokens"
check "it holds at once" "$status" = 200
check "no secret is listed" "$(says dllmd_)" = 0
check "nor is it in the database" "$(cat "$state"/dllmd.db* | grep -acF "$admin" || true)" = 0

# make NAME ROLE [JQ]: prints a new token
make() {
    ask "$admin" --json "$(jq -nc --arg n "$1" --arg r "$2" '{name: $n, role: $r} + '"${3-null}")" "$URL/v1/tokens"
    [ "$status" = 201 ] || fail "no token $1: $(cat "$tmp/answer")"
    jq -r .token "$tmp/answer"
}
read=$(make reader read)
submit=$(make submitter submit)
agent=$(make node-2 agent)
expired=$(make short admin '{expires_in_s: 0.05}')
revoked=$(make gone admin)
ask "$admin" "$URL/v1/tokens"
gone=$(jq '.tokens[] | select(.name == "gone") | .id' "$tmp/answer")
ask "$revoked" "$URL/v1/tokens"
check "it holds before" "$status" = 200
ask "$admin" -X DELETE "$URL/v1/tokens/$gone"
check "revoking" "$status" = 204
ask "$admin" -X DELETE "$URL/v1/tokens/$gone"
check "revoking again" "$status" = 204
sleep 0.1

# ---- Every route ----
curl -sS "$URL/openapi.json" | jq -r '.paths | to_entries[] | .key as $path | .value | to_entries[] |
    "\(.key | ascii_upcase) \($path) \(.value["x-role"])"' >"$tmp/routes"
allowed() { # ROLE NEEDED
    case "$2 $1" in
    open\ * | read\ read | read\ submit | read\ admin | submit\ submit | submit\ admin | admin\ admin) return 0 ;;
    esac
    return 1
}
routes=0
while read -r method path role; do
    routes=$((routes + 1))
    url=$URL$(printf '%s' "$path" | sed 's/{id}/999999/')
    for who in none wrong expired revoked read submit admin agent; do
        token=
        case $who in
        wrong) token=dllmd_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ;;
        none) ;;
        *) eval "token=\$$who" ;;
        esac
        ask "$token" -X "$method" "$url"
        what="$method $path ($role) with $who"
        if allowed $who "$role"; then
            check "$what is let in" "$status" != 401 -a "$status" != 403
            continue
        fi
        check "$what is a problem" "$(header content-type)" = application/problem+json
        case $who in
        none)
            check "$what" "$status" = 401
            check "$what: how to" "$(header www-authenticate)" = 'Bearer realm="dllmd"'
            ;;
        wrong | expired | revoked)
            check "$what" "$status" = 401
            check "$what: how to" "$(header www-authenticate)" = 'Bearer realm="dllmd", error="invalid_token"'
            ;;
        *)
            check "$what" "$status" = 403
            check "$what: names the role" "$(says "needs a token of the role $role;")" = 1
            ;;
        esac
    done
done <"$tmp/routes"
check "routes" "$routes" -ge 25

# ---- Who it was ----
ask "$submit" "$URL/v1/me"
check "who asks" "$(jq -c . "$tmp/answer")" = '{"name":"submitter","role":"submit"}'
make_data
spec mine '.steps = 2' >"$tmp/spec.json"
ask "$submit" --json "@$tmp/spec.json" "$URL/v1/jobs"
check "submitted" "$status" = 201
check "by whom" "$(jq -r .created_by "$tmp/answer")" = submitter
id=$(jq -r .id "$tmp/answer")
# A key is its sender's alone: somebody else's request of the same key is another one.
for who in "$submit" "$admin" "$submit" "$admin"; do
    ask "$who" --json "@$tmp/spec.json" -H 'Idempotency-Key: k' "$URL/v1/jobs"
    jq .id "$tmp/answer"
done >"$tmp/ids"
check "keys" "$(tr '\n' ' ' <"$tmp/ids")" = "$((id + 1)) $((id + 2)) $((id + 1)) $((id + 2)) "

# ---- Malformed ----
for value in "Basic dXNlcjpwYXNz" "Bearer" "Bearer  " "$admin" "bearer $(head -c 5000 /dev/zero | tr '\0' a)"; do
    ask '' -H "Authorization: $value" "$URL/v1/jobs"
    check "Authorization: $(echo "$value" | head -c 40)" "$status" = 401
done
ask '' -H "Authorization: bearer   $read" "$URL/v1/jobs"
check "the scheme in small letters" "$status" = 200
wrong() { # NEEDLE JSON
    ask "$admin" --json "$2" "$URL/v1/tokens"
    check "$2" "$status" = 422
    check "$2: $(cat "$tmp/answer")" "$(says "$1")" = 1
}
wrong '/name: is missing' '{"role": "read"}'
wrong '/role: is missing' '{"name": "x"}'
wrong 'must be \"read\"' '{"name": "x", "role": "root"}'
wrong '1 to 100 bytes' '{"name": "", "role": "read"}'
wrong '1 to 100 bytes' '{"name": "a\u0007b", "role": "read"}'
wrong 'seconds above 0' '{"name": "x", "role": "read", "expires_in_s": 0}'
wrong 'seconds above 0' '{"name": "x", "role": "read", "expires_in_s": "1"}'
wrong '/colour' '{"name": "x", "role": "read", "colour": 1}'
ask "$admin" --json '{"name": "reader", "role": "read"}' "$URL/v1/tokens"
check "a name twice" "$status" = 409
ask "$admin" --json '{"name": "gone", "role": "read"}' "$URL/v1/tokens"
check "the name of a revoked one" "$status" = 201
ask "$admin" --json '{"name": "y", "role": "read"}' -H 'Idempotency-Key: k' "$URL/v1/tokens"
check "an answer that cannot be kept" "$status" = 400

# ---- Other sites ----
ask "$admin" -H 'Origin: https://example.org' "$URL/v1/jobs"
check "a page of another site" "$status" = 403
ask "$admin" -H 'Origin: null' -X POST "$URL/v1/jobs/$id/cancel"
check "a page of no site" "$status" = 403
ask "$admin" -H "Origin: $URL" "$URL/v1/jobs"
check "our own page" "$status" = 200
ask "$admin" -H 'Host: dllmd.example.org' "$URL/v1/jobs"
check "with a token any name will do" "$status" = 200
stop_daemon

settings '{hosts: ["gpu7.example.org"]}'
start_daemon
check "without auth nobody is asked" "$(curl -sS -o /dev/null -w '%{http_code}' "$URL/v1/tokens")" = 200
ask dllmd_wrong "$URL/v1/jobs"
check "but a wrong token is wrong" "$status" = 401
ask "$read" -X POST "$URL/v1/backup"
check "and a small one is small" "$status" = 403
port=${URL##*:}
for host in "dllmd.example.org 403" "evil.example:$port 403" "127.0.0.1.example.org 403" \
    "gpu7.example.org.evil.example 403" "localhost 200" "localhost:$port 200" "LOCALHOST 200" \
    "127.0.0.1 200" "[::1]:$port 200" "gpu7.example.org:$port 200"; do
    ask '' -H "Host: ${host% *}" "$URL/v1/jobs"
    check "Host: ${host% *}" "$status" = "${host##* }"
done
# A name that was pointed here: its page is its own site's.
ask '' -H "Host: evil.example:$port" -H "Origin: http://evil.example:$port" "$URL/v1/jobs"
check "a name pointed here" "$status" = 403
stop_daemon

# ---- Too many requests ----
settings '{requests_per_s: 2}'
start_daemon
for _ in $(seq 40); do
    ask '' "$URL/healthz"
    [ "$status" = 200 ] || break
done
check "too many" "$status" = 429
check "when again" "$(header retry-after)" -ge 1
check "it says so" "$(says 'More than 2 requests a second')" = 1
sleep 1.2
ask '' "$URL/healthz"
check "a while later" "$status" = 200
stop_daemon
settings '{auth: true, requests_per_s: 10}'
start_daemon
for i in $(seq 20); do
    ask "dllmd_$i" "$URL/v1/jobs"
    [ "$status" = 401 ] || break
done
check "guessing is slower still" "$status" = 429 -a "$i" -lt 15

finish
