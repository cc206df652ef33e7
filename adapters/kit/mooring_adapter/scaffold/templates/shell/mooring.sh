# shellcheck shell=bash
# The client of the adapter contract: sign-in by a signed assertion, claims with their heartbeat, reports, tasks and
# correlation ids. It needs bash, curl, jq and openssl. What the app needs is in plan.jq, what is due in steps.jq.
: "${MOORING_URL:?the address of the platform}" "${MOORING_KEY_FILE:=adapter.pem}"
api="${MOORING_URL%/}/api/v1"
token_url="${MOORING_AUDIENCE:-$api/oauth/token}" # as the platform knows it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
holder="${MOORING_HOLDER:-$(hostname | cut -c 1-30)}-$(openssl rand -hex 8)"
room=$(mktemp -d) # requests and responses; tokens and assertions go through pipes, never into arguments
poll_seconds=20 ending='' curl_pid='' token=''

log() { jq -cn --arg level "$1" --arg event "$2" --arg reason "${3:-}" '{time: (now | todate), $level, $event, $reason}' >&2; }
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

assertion() { # SUBJECT AUDIENCE KEY_ID
    local now head claims
    now=$(date +%s)
    head=$(printf '{"alg":"EdDSA","typ":"JWT","kid":"%s"}' "$3" | base64url)
    claims=$(printf '{"iss":"%s","sub":"%s","aud":"%s","iat":%s,"exp":%s,"jti":"%s"}' \
        "$1" "$1" "$2" "$now" $((now + 120)) "$(openssl rand -hex 16)" | base64url)
    printf '%s.%s' "$head" "$claims" >"$place/signed"
    printf '%s.%s.%s' "$head" "$claims" "$(openssl pkeyutl -sign -inkey "$MOORING_KEY_FILE" -rawin -in "$place/signed" | base64url)"
}

sign_in() {
    token=$(printf 'data-urlencode = "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer"\ndata-urlencode = "assertion=%s"\n' \
        "$(assertion "$account" "$token_url" "$key_id")" |
        curl --silent --fail --max-time 30 --config - "$api/oauth/token" | jq -r '.access_token // empty')
    [ -n "$token" ]
}

headers() { # METHOD PATH BODY_FILE CORRELATION, as a configuration of curl
    [ -z "$token" ] || printf 'header = "Authorization: Bearer %s"\n' "$token"
    [ -z "${4:-}" ] || printf 'header = "X-Correlation-ID: %s"\n' "${4//[\"\\]/}"
    [ "$1" = GET ] || printf 'header = "Content-Type: application/json"\ndata-binary = "@%s"\n' "$3"
}

# One request; its status is in $status (000: no response), its response in $place/answer. SIGTERM interrupts it.
send() {
    : >"$place/answer"
    curl --silent --max-time "${limit:-30}" --config <(headers "$@") --output "$place/answer" --write-out '%{http_code}' \
        "$api$2" >"$place/status" &
    curl_pid=$!
    wait "$curl_pid"
    status=$(cat "$place/status")
    case $status in ???) ;; *) status=000 ;; esac
}

call() { # the same, with a new token if the old one has expired
    send "$@"
    if [ "$status" = 401 ] && [ -z "$ending" ] && sign_in; then send "$@"; fi
}

code() { jq -r '.code // empty' "$place/answer"; }
forget() { held=$(jq -c --arg id "$1" 'map(select(.instance_id != $id))' <<<"$held"); }

# Do the requests of a plan in order: two lines each, "OPERATION CORRELATION PATH" and the body.
perform() { # INSTANCE FENCE
    local operation correlation path body refused
    while read -r operation correlation path && IFS= read -r body; do
        printf '%s' "$body" >"$place/body"
        call POST "/runtime/instances/$1/$path" "$place/body" "$correlation"
        refused=''
        case $status in
        2??) refused=$(jq -r 'first(.tasks[]? | select(.refusal and (.refusal.retryable or .refusal.code == "conflict" | not))
            | "\(.step): \(.refusal.detail)") // empty' "$place/answer") ;;
        400 | 403 | 413 | 422) refused="$(code): $(jq -r '.detail // ""' "$place/answer")" ;;
        esac
        if [ -n "$refused" ]; then # asking again does not help
            log error "the operation $operation fails" "$refused"
            failure=adapter_error
            [ "$status" != 403 ] || failure=permission_denied
            jq -cn --argjson fence "$2" --arg operation_id "$operation" '{$fence, $operation_id, begin: true}' >"$place/body"
            call POST "/runtime/instances/$1/reports" "$place/body" "$correlation"
            jq -cn --argjson fence "$2" --arg code "$failure" --arg detail "$refused" \
                '{$fence, outcome: "failed", failure: {$code, $detail, last_lines: []}}' >"$place/body"
            call POST "/runtime/instances/$1/operations/$operation/finish" "$place/body" "$correlation"
        fi
        case $status in 2??) ;; *) return ;; esac
    done <"$place/requests"
}

# Read an instance, plan, and do what is due, until nothing is; after 15 seconds the claims are renewed first.
work() { # INSTANCE FENCE
    local until=$((SECONDS + 15))
    while [ -z "$ending" ] && [ "$SECONDS" -lt "$until" ]; do
        call GET "/runtime/instances/$1?fence=$2"
        if [ "$status" = 200 ]; then
            jq -r -L "$here" --argjson fence "$2" 'include "steps"; include "plan"; requests($fence; plan)' "$place/answer" >"$place/requests" || return 0
            [ -s "$place/requests" ] || return 0
            perform "$1" "$2"
        fi
        case "$status $(code)" in
        2??*) continue ;;
        404* | *lease_lost) forget "$1"; return 0 ;;
        403*) return 0 ;;
        esac
        log warning "a request failed; reading the instance again" "$status $(code)"
        sleep 0.2
    done
    return 1
}

# A poll is heartbeat, claim and news at once. Without news every instance is looked at.
poll() {
    jq -cn --arg holder "$holder" --argjson held "$held" --argjson after "$after" --argjson wait_seconds "$poll_seconds" \
        '{$holder, free: 50, $wait_seconds, $held, $after}' >"$place/body"
    limit=$((poll_seconds + 15)) call POST /runtime/claims "$place/body"
    [ "$status" = 200 ] || return 1
    jq -r --argjson held "$held" '. as $news | ($held | map({(.instance_id): .fence}) | add // {}) as $old
        | (reduce .lost[] as $l ($old; if .[$l.instance_id] == $l.fence then del(.[$l.instance_id]) else . end)
           | reduce $news.claims[] as $c (.; if $c.fence > (.[$c.instance_id] // -1) then .[$c.instance_id] = $c.fence else . end)) as $now
        | ([.claims[].instance_id] + .changed) as $new
        | ([$now | to_entries[] | {instance_id: .key, fence: .value}] | tojson), (.cursor | tojson),
          ($now | to_entries[] | select(($new | length) == 0 or (.key | IN($new[]))) | "\(.key) \(.value)")' "$place/answer" >"$place/news"
    { [ "$(wc -l <"$place/news")" -ge 2 ] && IFS= read -r held && IFS= read -r after; } <"$place/news" || return 1
    while read -r instance fence <&3; do
        work "$instance" "$fence" || after=null # what is left undone counts as changed
    done 3< <(tail -n +3 "$place/news")
}

serve_account() { # ACCOUNT KEY_ID
    account=$1 key_id=$2 place="$room/$1" held='[]' after=null
    mkdir -p "$place"
    trap 'ending=yes; kill "$curl_pid" 2>/dev/null' TERM INT
    while [ -z "$ending" ]; do poll || [ -n "$ending" ] || { log warning "a poll failed; retrying" "$status"; sleep 0.3; }; done
    jq -cn --arg holder "$holder" --argjson held "$held" '{$holder, $held}' >"$place/body"
    call POST /runtime/releases "$place/body"
}

# Serve every account of the key until SIGTERM or SIGINT.
serve() { # APP
    local public children='' known=' ' each place="$room"
    public=$(openssl pkey -in "$MOORING_KEY_FILE" -pubout -outform DER | tail -c 32 | base64url)
    trap 'ending=yes; kill $children "$sleep_pid" 2>/dev/null' TERM INT
    while [ -z "$ending" ]; do
        assertion "key:$public" "${token_url%/oauth/token}/runtime/accounts" adapter | jq -R '{assertion: .}' >"$place/body"
        send POST /runtime/accounts "$place/body"
        [ "$status" = 200 ] || log warning "cannot list the accounts; retrying" "$status"
        for each in $(jq -r --arg app "$1" '.accounts[]? | select(.apps | length == 0 or index($app)) | "\(.service_account_id)/\(.key_id)"' "$place/answer"); do
            case $known in *" $each "*) continue ;; esac
            known="$known$each "
            serve_account "${each%/*}" "${each#*/}" & children="$children $!"
        done
        sleep "$([ "$status" = 200 ] && echo 10 || echo 0.5)" & sleep_pid=$!
        wait "$sleep_pid"
    done
    wait
    rm -rf "$room"
}
