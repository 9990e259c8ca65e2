#!/bin/sh
# TLS: what needs it, certificates that cannot be used, and one that is replaced while connections
# are open: by SIGHUP, and by itself.
. "$(dirname "$0")/lib.sh"

# certificate NAME: a self-signed one in $tmp/NAME.pem, its key in $tmp/NAME.key
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
        -subj "/CN=$1" -addext 'subjectAltName = IP:127.0.0.1, DNS:localhost' \
        -keyout "$tmp/$1.key" -out "$tmp/$1.pem" 2>/dev/null
}
settings() {
    jq -n --arg tmp "$tmp" '{roots: [$tmp], slots: 4} + '"$1" >"$tmp/dllmd.json"
}
certificate one
certificate two

# ---- Settings ----
refused() { # NEEDLE JSON
    settings "$2"
    "$dllmd" --config "$tmp/dllmd.json" --state "$state" --check-config >"$tmp/out" 2>&1 && fail "$2 is taken"
    check "$2 is refused with $1: $(cat "$tmp/out")" "$(grep -cF -- "$1" "$tmp/out")" -ge 1
}
taken() {
    settings "$1"
    "$dllmd" --config "$tmp/dllmd.json" --state "$state" --check-config >"$tmp/out" 2>&1 ||
        fail "$1 is refused: $(cat "$tmp/out")"
}
both='{tls_certificate: ($tmp + "/one.pem"), tls_key: ($tmp + "/one.key")}'
refused 'tls_certificate' '{listen_address: "0.0.0.0"}'
refused 'tls_certificate' '{listen_address: "::", auth: true}'
refused '/tls_key is missing' '{tls_certificate: ($tmp + "/one.pem")}'
refused '/tls_certificate is missing' '{tls_key: ($tmp + "/one.key")}'
refused 'nowhere.pem' '{tls_certificate: ($tmp + "/nowhere.pem"), tls_key: ($tmp + "/one.key")}'
refused 'two.key is not the key of the certificate' '{tls_certificate: ($tmp + "/one.pem"), tls_key: ($tmp + "/two.key")}'
refused 'one.key' '{tls_certificate: ($tmp + "/one.key"), tls_key: ($tmp + "/one.key")}'
head -c 200 "$tmp/one.pem" >"$tmp/half.pem"
refused 'half.pem' '{tls_certificate: ($tmp + "/half.pem"), tls_key: ($tmp + "/one.key")}'
refused '/hosts/0' '{hosts: ["a b"]}'
taken '{listen_address: "0.0.0.0", insecure: true}'
taken '{listen_address: "0.0.0.0"} + '"$both"
taken "$both"

# ---- Serving ----
cp "$tmp/one.pem" "$tmp/live.pem"
cp "$tmp/one.key" "$tmp/live.key"
cat "$tmp/one.pem" "$tmp/two.pem" >"$tmp/both.pem"
export CURL_CA_BUNDLE="$tmp/both.pem"
settings '{tls_certificate: ($tmp + "/live.pem"), tls_key: ($tmp + "/live.key"), auth: true}'
token=$("$dllmd" --config "$tmp/dllmd.json" --state "$state" --create-admin-token 2>/dev/null)
start_daemon
case $URL in https://127.0.0.1:*) ;; *) fail "the URL is $URL" ;; esac
ask() {
    curl -sS -o "$tmp/answer" -w '%{http_code}' -H "Authorization: Bearer $token" "$@"
}
subject() {
    openssl s_client -connect "${URL#https://}" </dev/null 2>/dev/null | sed -n 's/^subject=CN *= *//p'
}
check "over TLS" "$(ask "$URL/v1/jobs")" = 200
check "a token is asked for" "$(curl -sS -o /dev/null -w '%{http_code}' "$URL/v1/jobs")" = 401
check "the certificate" "$(subject)" = one
curl -sS --tls-max 1.1 "$URL/healthz" >/dev/null 2>&1 && fail "TLS 1.1 is taken"
curl -sS --max-time 5 "http://${URL#https://}/healthz" >/dev/null 2>&1 && fail "plain HTTP is answered"

make_data
spec live.step-ms=20 '.steps = 100000' >"$tmp/spec.json"
check "submitted" "$(ask --json "@$tmp/spec.json" "$URL/v1/jobs")" = 201
id=$(jq .id "$tmp/answer")
curl -sSN -H "Authorization: Bearer $token" -H 'Accept: text/event-stream' \
    "$URL/v1/jobs/$id/events" >"$tmp/stream" &
stream=$!
for _ in $(seq 100); do
    grep -q 'to":"running' "$tmp/stream" && break
    sleep 0.05
done

# A key that is not the certificate's yet, as in the middle of a replacement.
cp "$tmp/two.pem" "$tmp/live.pem"
kill -HUP "$DAEMON"
sleep 0.5
check "half of a replacement changes nothing" "$(subject)" = one
check "it is told" "$(grep -c 'the certificate stays as it is' "$tmp/dllmd.log")" -ge 1
cp "$tmp/two.key" "$tmp/live.key"
kill -HUP "$DAEMON"
for _ in $(seq 60); do
    [ "$(subject)" != two ] || break
    sleep 0.1
done
check "after SIGHUP" "$(subject)" = two
check "it still answers" "$(ask "$URL/v1/jobs/$id")" = 200
cp "$tmp/one.pem" "$tmp/live.pem"
cp "$tmp/one.key" "$tmp/live.key"
for _ in $(seq 120); do
    [ "$(subject)" != one ] || break
    sleep 0.1
done
check "by itself" "$(subject)" = one
kill -0 $stream 2>/dev/null || fail "the open stream was dropped"
check "cancelled" "$(ask -X POST "$URL/v1/jobs/$id/cancel")" = 200
wait $stream
check "the stream saw the end" "$(grep -c 'to":"cancelled' "$tmp/stream")" = 1

finish
