#!/bin/sh
# The echo adapter as one shell script: the contract needs no kit and no particular language.
# It needs curl, jq and openssl. Its steps have the same names as those of the Python adapter, so that each
# continues where the other was stopped. docs/adapter-contract.md explains each request.
#
#   MOORING_URL=…  MOORING_KEY_FILE=key.pem  ./echo.sh
set -eu
: "${MOORING_URL:?the address of the platform}" "${MOORING_KEY_FILE:?an Ed25519 private key in PEM}"
api="${MOORING_URL%/}/api/v1"
known_as="${MOORING_AUDIENCE:-$api/oauth/token}" # the token endpoint, as the platform knows it
room=$(mktemp -d)                                # requests and answers; secrets go through pipes, never into argv

say() { printf '{"time":"%s","level":"%s","event":"%s"}\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" "$2" >&2; }
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

# A signed JWT assertion (RFC 7523): subject $1, audience $2, key id $3.
assertion() {
    now=$(date +%s)
    head=$(printf '{"alg":"EdDSA","typ":"JWT","kid":"%s"}' "$3" | base64url)
    claims=$(printf '{"iss":"%s","sub":"%s","aud":"%s","iat":%s,"exp":%s,"jti":"%s"}' \
        "$1" "$1" "$2" "$now" $((now + 120)) "$(openssl rand -hex 16)" | base64url)
    printf '%s.%s' "$head" "$claims" >"$place/signed"
    signature=$(openssl pkeyutl -sign -inkey "$MOORING_KEY_FILE" -rawin -in "$place/signed" | base64url)
    printf '%s.%s.%s' "$head" "$claims" "$signature"
}

# Exchange an assertion for a token, which is kept in a variable.
sign_in() {
    token=$(printf 'data-urlencode = "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer"\ndata-urlencode = "assertion=%s"\n' \
        "$(assertion "$account" "$known_as" "$key_id")" |
        curl --silent --fail --max-time 30 --config - "$api/oauth/token" | jq -r '.access_token // empty') || token=
    [ -n "$token" ]
}

# Send the requests in $place/requests (two lines each: "METHOD path correlation trace", then the body), in order,
# until one is refused. The responses are $place/1, $place/2 …; prints the statuses, one per line.
send() {
    number=0 span=$(openssl rand -hex 6)
    while read -r method path correlation trace && IFS= read -r body; do
        number=$((number + 1))
        printf '%s' "$body" >"$place/body$number"
        [ "$number" = 1 ] || echo next
        printf 'url = "%s"\noutput = "%s"\nwrite-out = "%%{http_code}\\n"\nmax-time = 60\nsilent\nfail-with-body\nfail-early\n' \
            "$api$path" "$place/$number"
        printf 'header = "Authorization: Bearer %s"\n' "$token"
        [ "$correlation" = - ] || printf 'header = "X-Correlation-ID: %s"\n' "$correlation"
        [ "$trace" = - ] || printf 'header = "traceparent: 00-%s-%s-01"\n' "$trace" "$span$(printf '%04x' "$number")"
        [ "$method" = GET ] || printf 'header = "Content-Type: application/json"\ndata-binary = "@%s"\n' "$place/body$number"
    done <"$place/requests" | curl --config - 2>/dev/null || true
}

# The same, with a new token if the old one has expired; the last status is in $status.
exchange() {
    send >"$place/statuses"
    status=$(tail -n 1 "$place/statuses")
    if [ "$status" = 401 ] && sign_in; then
        send >"$place/statuses"
        status=$(tail -n 1 "$place/statuses")
    fi
    [ -n "$status" ] || status=000
}

ask() { # ask PATH BODY: one request that is about no operation
    printf 'POST %s - -\n%s\n' "$1" "$2" >"$place/requests"
    exchange
    [ "$status" = 200 ]
}

forget() { held=$(printf '%s' "$held" | jq -c --arg id "$1" 'map(select(.instance_id != $id))'); }

# Read an instance, plan, and do what is due; repeat until nothing is.
keep() {
    id=$1 fence=$2 rounds=0
    while [ $rounds -lt 40 ]; do
        rounds=$((rounds + 1))
        printf 'GET /runtime/instances/%s?fence=%s - -\n\n' "$id" "$fence" >"$place/requests"
        exchange
        case $status in
        200) ;;
        404 | 409) forget "$id"; return ;;
        *) sleep 0.3; continue ;;
        esac
        jq -r --argjson fence "$fence" "$PLAN" "$place/1" >"$place/planned"
        look_in=$(head -n 1 "$place/planned")
        if [ "$look_in" != - ] && [ "$look_in" -lt "$soonest" ]; then soonest=$look_in; fi
        tail -n +2 "$place/planned" >"$place/requests"
        [ -s "$place/requests" ] || return 0
        exchange
        if [ "$status" = 409 ] && grep -q '"lease_lost"' "$place/$(wc -l <"$place/statuses" | tr -d ' ')"; then
            forget "$id"
            return
        fi
        case $status in 2??) ;; *) say warning "a request failed; reading again: $status"; sleep 0.2 ;; esac
    done
}

# One account: claim, work and heartbeat in one loop.
serve() {
    account=$1 key_id=$2 place="$room/$1" held='[]' after='' soonest=20 token=''
    mkdir -p "$place"
    trap 'release; exit 0' TERM INT
    until sign_in; do sleep 0.5; done
    say info "serving account $account"
    while :; do
        # The poll is heartbeat, claim and notification at once.
        if ! poll "$(printf '{"holder":"%s","free":50,"wait_seconds":%s,"held":%s%s}' "$holder" "$soonest" "$held" "$after")"; then
            sleep 0.3
            continue
        fi
        # The claims, the cursor of the news, and the instances to read; without news, all of them.
        printf '%s' "$held" | jq -r --slurpfile news "$place/1" '
            $news[0] as $n | (map({(.instance_id): .fence}) | add // {}) as $held
            | (reduce $n.lost[] as $l ($held; if .[$l.instance_id] == $l.fence then del(.[$l.instance_id]) else . end)
               | reduce $n.claims[] as $c (.; if $c.fence > (.[$c.instance_id] // -1) then .[$c.instance_id] = $c.fence else . end)) as $now
            | ([$n.claims[].instance_id] + $n.changed) as $new
            | ([$now | to_entries[] | {instance_id: .key, fence: .value}] | tojson), ",\"after\":\($n.cursor | tojson)",
              ($now | to_entries[] | select(($new | length == 0) or (.key | IN($new[]))) | "\(.key) \(.value)")' >"$place/todo"
        { IFS= read -r held; IFS= read -r after; } <"$place/todo"
        soonest=20
        tail -n +3 "$place/todo" >"$place/each"
        while read -r instance fenced; do keep "$instance" "$fenced" </dev/null; done <"$place/each"
    done
}

poll() { # in the background, so that a SIGTERM is heard while the platform makes us wait
    printf 'POST /runtime/claims - -\n%s\n' "$1" >"$place/requests"
    send >"$place/statuses" &
    under_way=$!
    wait "$under_way"
    status=$(tail -n 1 "$place/statuses")
    if [ "$status" = 401 ]; then sign_in || true; fi
    [ "$status" = 200 ]
}

release() {
    trap - TERM INT
    [ -z "${under_way:-}" ] || kill "$under_way" 2>/dev/null || true
    ask /runtime/releases "$(printf '{"holder":"%s","held":%s}' "$holder" "$held")" || true
    say info "released the claims"
}

# The plan: reads the instance, prints the seconds until the next look ("-" for never), then the requests.
PLAN=$(cat <<'JQ'
def time: sub("\\.[0-9]+"; "") | sub("\\+00:00$"; "Z") | fromdate;
def port: .port_by_id;
def place: "/srv/echo/\(.id)";
def service: "echo-\(.component_key)-\(.ordinal)";
def standing: .status | IN("ready", "degraded", "draining", "drained");
def reachable: .failure_code != "node_lost" and (.allocation.node_reachable != false);
def peers($members): . as $m | [($members[] | select(.component_key == "seed")),
    (if $m.component_key == "gate" then [$members[] | select(.component_key == "worker")][:50][] else empty end)] | [.[] | {address: (.allocation.address // "127.0.0.1"), name, port: port, role: .component_key}] | tojson;

# Steps: a task, a report about a member, a barrier, the end.
def task($step; $type; $arguments): {step: $step, member: .id, type: $type, arguments: $arguments};
def soft: . + {soft: true};
def report($step; $report): {step: $step, member: .id, report: $report};
def gather($step): {step: $step, gathers: true};
def finish($result): {step: "finish", finish: ($result + {outcome: ($result.outcome // "succeeded")})};
def failed($code; $detail): finish({outcome: "failed", failure: {code: $code, detail: $detail, last_lines: []}});

def greeting($word): {path: "\(place)/greeting", mode: "0644", content: "\($word // "echo")\n"};
def files($step; $w; $members): task($step; "files.write"; {files: [
    {path: "\(place)/echo_node.py", mode: "0644", artifact: "script"},
    {path: "\(place)/peers.json", mode: "0644", content: peers($members)},
    greeting($w.instance.config.greeting),
    {path: "\(place)/cordon", mode: "0644", content: "off\n"}]});
def start($step; $version): task($step; "service.start"; {
    name: service, directory: place, environment: {ECHO_VERSION: $version},
    argv: ["python3", "echo_node.py", "serve", "--role", .component_key, "--port", (port | tostring)],
    restart: {policy: "on_failure", backoff_seconds: 1, limit: 10}}
    + if .component_key == "gate" then {endpoint: {name: "web", port: port, protocol: "http"}} else {} end);
def stop($step): task($step; "service.stop"; {name: service, kill: "main", grace_seconds: 5}) | soft;
def probe($step): task($step; "probe.http"; {port: port, path: "/ready", attempts: 40, interval_seconds: 0.25});
def bring_up($w; $members):
    report("join/\(.id)"; {status: "joining"}), files("files/\(.id)"; $w; $members),
    start("start/\(.id)"; $w.instance.pin.version), probe("probe/\(.id)"),
    report("ready/\(.id)"; {status: "ready", health: "healthy", detail: {port: port, role: .component_key}});
def news($members; $changed): [$changed[].component_key] as $roles # everybody learns of seeds, the gates of workers
    | $members[] | select(standing and reachable and (.id | IN($changed[].id) | not))
    | select(("seed" | IN($roles[])) or (.component_key == "gate" and ("worker" | IN($roles[]))))
    | task("peers/\(.id)"; "files.write"; {files: [{path: "\(place)/peers.json", mode: "0644", content: peers($members)}]}) | soft;
def endpoints($w; $members):
    [$members[] | select(.component_key == "gate" and (.status | IN("failed", "draining") | not))][0] as $gate
    | if $gate == null or ([$w.instance.endpoints[] | select(.name == "web")][0].member_id == $gate.id) then empty
      else {step: "endpoint", endpoint: {name: "web", member_id: $gate.id, protocol: "http", port: ($gate | port), title: "Echo"},
            task: "start/\($gate.id)"} end;

def alive($w): [("seed", "worker", "gate") as $role | $w.members | map(select(.component_key == $role and (.status | IN("removing", "removed") | not))) | sort_by(.ordinal)[]];
def concerned($w; $op): [$op.member_ids[] as $id | $w.members[] | select(.id == $id)];
def made($w; $op): reduce ($w.tasks[] | select(.operation_id == $op.id)) as $t ({}; .[$t.step] = $t);
def is_over: .status | IN("succeeded", "failed", "cancelled", "expired");

# A seed may stop only while a majority of the others works.
def has_quorum($w): . as $m | [alive($w)[] | select(.component_key == "seed")] as $seeds
    | .component_key != "seed" or ($seeds | length) == 1
      or ([$seeds[] | select(.id != $m.id and (.status | IN("ready", "degraded")) and reachable)] | length) > (($seeds | length) / 2 | floor);
# How far the drain of a member is: its probes so far, and what to do next.
def quietness($w; $op): . as $m | made($w; $op) as $made
    | [range(1; 1000) | $made["quiet/\($m.id)/\(.)"] // empty] as $looks | ($looks | last) as $last
    | (if $op.kind | IN("remove", "replace") then $w.manifest.lifecycle.delete.graceful_seconds // 60 else 0 end) as $ending
    | (($op.phase_deadline_at // $op.deadline_at | time) - $ending - ($w.now | time) <= 2) as $late
    | {quiet: ($last.status == "succeeded"), given_up: ($late and $last != null and ($last | is_over) and $last.status != "succeeded"),
       steps: [
        (task("cordon/\($m.id)"; "files.write"; {files: [{path: "\(place)/cordon", mode: "0644", content: "on\n"}]})),
        (($last != null and ($last | is_over) and $last.status != "succeeded" and ($late | not)) as $again
         | (if $again then {step: "pause/\($m.id)", member: $m.id, wait: (($last.finished_at | time) + 1)} else empty end),
           (task("quiet/\($m.id)/\([($looks | length), 1] | max + if $again then 1 else 0 end)"; "probe.http";
                 {port: ($m | port), path: "/quiet", attempts: 8, interval_seconds: 0.25}) | soft))]};
# One member after the other, in as many lanes as leave a majority running; the steps of each member are a list.
def in_lanes: ([((length - 1) / 2 | floor), 1] | max) as $lanes | . as $all
    | range(length) as $i | $all[$i] | if $i < $lanes then .[] else (.[0] + {after: $all[$i - $lanes][-1].step}), .[1:][] end;

def leave($w; $op): # the steps of a member that goes; `open` where they are not at their end
    if (standing and reachable) | not then {steps: [], open: false}
    else . as $m | quietness($w; $op) as $q
      | {open: (($q.quiet or $q.given_up) | not),
         steps: ($q.steps + if $q.quiet or $q.given_up then
            [(if $q.quiet and $m.status == "draining" then ($m | report("drained/\(.id)"; {status: "drained"})) else empty end), ($m | stop("stop/\(.id)"))] else [] end)} end;

def say_text: .request.input.text // "";
def plan_action($w; $op): made($w; $op) as $made | ($op.request.action // $op.request.name) as $name
    | if $name == "echo.say" then
        ([$w.members[] | select(.component_key == "gate" and (.status | IN("ready", "degraded")) and reachable)][0]) as $gate
        | if $gate == null then failed("unhealthy"; "no gate is ready") else
          ($gate | task("say"; "process.run"; {argv: ["python3", "echo_node.py", "say", ($op | say_text)], directory: place, timeout_seconds: 20})),
          finish({output: {text: ($made["say"].last_lines // [""] | last // "")}}) end
      elif $name == "echo.remember" then
        [$w.members[] | select(.component_key == "seed" and (.status | IN("ready", "degraded")) and reachable)] as $seeds
        | if ($seeds | length) == 0 then failed("unhealthy"; "no seed is ready") else
          ($seeds[] | task("remember/\(.id)"; "process.run"; {argv: ["python3", "echo_node.py", "remember", ($op | say_text)], directory: place, timeout_seconds: 20}) | soft),
          ([$made[] | select(.status == "succeeded")] | length) as $kept
          | finish({output: {seeds: $kept}}
              + if ([$made[] | select(is_over)] | length) == ($seeds | length) and $kept <= (($seeds | length) / 2 | floor)
                then {outcome: "failed", failure: {code: "unhealthy", detail: "it was not stored by a majority of the seeds", last_lines: []}} else {} end) end
      else failed("adapter_error"; "this adapter knows no action \($name)") end;

def plan($w; $op): alive($w) as $members | concerned($w; $op) as $named
    | if $op.status == "cancelling" then
        if [made($w; $op)[] | select(is_over | not)] | length > 0 then empty else finish({outcome: "cancelled"}) end
      elif $op.kind == "deploy" then
        [$members[] | select(.component_key == "seed")] as $seeds
        | if ($seeds | length) % 2 == 0 then failed("config_refused"; "the number of seeds must be odd, so that there is always a majority") else
          ($seeds[] | bring_up($w; $members)), gather("seeds"),
          ($members[] | select(.component_key != "seed") | bring_up($w; $members)), endpoints($w; $members), finish({}) end
      elif $op.kind == "add" then ($named[] | bring_up($w; $members)), news($members; $named), endpoints($w; $members), finish({})
      elif $op.kind == "drain" then
        $named[0] as $m | if ($m | has_quorum($w)) | not then {step: "quorum", blocked: {code: "quorum", detail: "a majority of the seeds would not be left"}}
        else ($m | quietness($w; $op)) as $q
          | if $q.given_up then failed("not_quiet"; "\($m.name) still had work when the time was over") else $q.steps[],
            if $q.quiet then ($m | report("drained/\(.id)"; {status: "drained", detail: (.adapter_detail + {cordoned_by: $op.id})})), finish({}) else empty end end end
      elif $op.kind == "remove" then
        if any($named[]; standing and (has_quorum($w) | not)) then {step: "quorum", blocked: {code: "quorum", detail: "a majority of the seeds would not be left"}}
        else [$named[] | leave($w; $op)] as $leaving | $leaving[].steps[],
          if any($leaving[]; .open) then empty else news([$members[] | select(.id | IN($op.member_ids[]) | not)]; $named), finish({}) end end
      elif $op.kind == "replace" then
        [$named[].replaces_id // empty] as $replaced | [$named[] | select(.id | IN($replaced[]) | not)] as $new
        | [$members[] | select(.id | IN($replaced[]) | not)] as $staying
        | [$named[] | select(.id | IN($replaced[])) | leave($w; $op)] as $leaving
        | if $op.request.surge == false then
            $leaving[].steps[], if any($leaving[]; .open) then empty else gather("first"), ($new[] | bring_up($w; $staying)), gather("second") end
          else ($new[] | bring_up($w; $staying)), gather("arrived"), $leaving[].steps[], if any($leaving[]; .open) then empty else gather("left") end end,
          if any($leaving[]; .open) then empty else news($staying; $new), endpoints($w; $staying), finish({}) end
      elif $op.kind | IN("upgrade", "rollback", "restart") then
        [$members[] | select(standing)] as $up | ($op.kind == "restart") as $same
        | (("seed", "worker", "gate") as $role
           | ([$up[] | select(.component_key == $role)
               | [(if $same then empty else files("files/\(.id)"; $w; $up) end), stop("stop/\(.id)"),
                  start("start/\(.id)"; if $same then .version else $op.target_pin.version end), probe("probe/\(.id)"),
                  (if $same then empty else report("version/\(.id)"; {version: $op.target_pin.version}) end)]] | in_lanes), gather("\($role)s")),
          endpoints($w; $up), finish({})
      elif $op.kind == "configure" then # the program reads the file at each request: nothing restarts
        ($members[] | select(standing and reachable)
          | task("greeting/\(.id)"; "files.write"; {files: [greeting($op.request.input.greeting)]}), probe("probe/\(.id)")), finish({})
      elif $op.kind | IN("repair", "reconcile") then
        [$op.steps[] | select(.status == "done") | .name] as $noted
        | [$members[] | select((.status | IN("failed", "joining")) or ("join/\(.id)" | IN($noted[]))) | select(reachable)
           | select($op.request.member_id == null or $op.request.member_id == .id)] as $broken
        | ($broken[] | [bring_up($w; $members)] as $steps | $steps[0], stop("stop/\(.id)"), $steps[1:][]),
          news([$members[] | select(.id | IN($broken[].id) | not)]; $broken), endpoints($w; $members), finish({})
      elif $op.kind == "decommission" then ($w.members[] | select(standing and reachable) | stop("stop/\(.id)")), finish({})
      else plan_action($w; $op) end;

# What a failed task means for its operation.
def why($m): {code: (if $m.failure_code == "node_lost" or (.status == "expired" and ($m | reachable | not)) then "node_lost"
      else {timed_out: "step_timeout", digest_mismatch: "artifact_refused", image_pull_failed: "image_pull_failed", no_progress: "image_pull_failed",
            too_large: "config_refused", path_refused: "config_refused", permission_denied: "permission_denied", probe_failed: "unhealthy",
            capacity: "no_capacity"}[.failure_code // ""] // "runtime_error" end),
    detail: "\(.step): \(.failure_detail // .failure_code // .status)", last_lines: (.last_lines // [])};
def reached($kind; $status): ($kind | IN("deploy", "add")) and (.status | IN("ready", "degraded", "draining", "drained", "removing", "removed") or ($status == "joining" and . == "joining"));

# What is due: steps of one member in order, members in parallel, a step without a member waits for all before it.
def due($w; $op): made($w; $op) as $made | (reduce $w.members[] as $m ({}; .[$m.id] = $m)) as $by
    | ([$op.steps[] | select(.status == "done") | .name]) as $noted
    | reduce plan($w; $op) as $s ({last: {}, gate: true, all: true, done: {}, tasks: [], members: {}, steps: [], wait: null};
        if .failure or .blocked then . else
          (if $s.after then (.done[$s.after] // false) elif $s.member then (if .last | has($s.member) then .last[$s.member] else .gate end) else .all end) as $may
          | ($by[$s.member // ""]) as $m | .is = false
          | if $s.type then $made[$s.step] as $t
              | if $t.status == "succeeded" then .is = true
                elif ($t and ($t | is_over)) or ($m.failure_code == "node_lost") then
                  if $s.soft then .is = true
                  else (($t // {step: $s.step, status: "expired", failure_detail: "the node is lost"}) | why($m)) as $f | .failure = $f
                    | if $m.status == "joining" then .members[$m.id] = {id: $m.id, status: "failed", failure: $f} else . end end
                elif $t == null and $may then .tasks += [$s] else . end
            elif $s.report then
              if ($s.step | IN($noted[])) or ($m | reached($op.kind; $s.report.status)) or ($s.report.version and $m.version == $s.report.version) then .is = true
              elif $m.failure_code == "node_lost" then .failure = {code: "node_lost", detail: "the node of \($m.name) is lost", last_lines: []}
              elif $may and (.members | has($m.id) | not) then .is = true | .members[$m.id] = ({id: $m.id} + $s.report)
                | if $op.kind | IN("deploy", "add") then . else .steps += [{name: $s.step, status: "done"}] end
              else . end
            elif $s.wait then if $s.wait <= ($w.now | time) then .is = true else .wait = ($s.wait - ($w.now | time)) end
            elif $s.blocked then .blocked = $s.blocked
            elif $s.endpoint and $may then .is = true | .endpoint = ($s.endpoint + if $made[$s.task] then {task_id: $made[$s.task].id} else {} end)
            elif $s.gathers then .is = $may
            elif $s.finish and $may then .finish = $s.finish else . end
          | .is as $is | .done[$s.step] = $is
          | if $s.member then .last[$s.member] = $is | .all = (.all and $is) else .gate = $is | .all = $is | .last = {} end end);

# The health of a running instance, and members whose drain was taken back.
def watched($w): alive($w) as $members | [$members[] | select(.component_key == "seed")] as $seeds
    | ([$seeds[] | select(.status | IN("ready", "degraded"))] | length) as $up
    | (if $up <= (($seeds | length) / 2 | floor) or ($seeds | length) % 2 == 0 or any($members[]; .status | IN("failed", "degraded")) then "degraded" else "healthy" end) as $health
    | [$members[] | select(.status == "ready" and .adapter_detail.cordoned_by)] as $back
    | (reduce ($w.tasks[] | select(.operation_id == null)) as $t ({}; .[$t.step] = $t)) as $looks
    | ($w.now | time) as $now | ($w.instance.adapter_detail.metered_members // null) as $counted
    | (if ($counted | type) == "number" then $w.instance.adapter_detail.metered_until // null else null end) as $begun
    | ([$w.members[] | select(.status | IN("ready", "degraded"))] | length) as $ready
    | (if ($begun | type) != "number" then $now elif $now >= $begun + 300 then $begun + 300 else $begun end) as $until
    | (if ($begun | type) == "number" and $until > $begun then {path: "usage", body: {records: [{record_id: "ready/\($begun)", unit: "ready_members",
          started_at: ($begun | todate), ended_at: ($until | todate), quantity: $counted}]}} else empty end),
      (([$back[] | select($looks["wanted/\(.id)/\(.adapter_detail.cordoned_by)"].status == "succeeded") | {id, detail: (.adapter_detail | del(.cordoned_by))}]) as $changes
       | ((if $health != $w.instance.health then {health: $health} else {} end)
          + if $until != $begun then {detail: ($w.instance.adapter_detail + {metered_until: $until, metered_members: $ready})} else {} end) as $whole
       | if ($changes | length) + ($whole | length) > 0 then {path: "reports", body: ({members: $changes} + if $whole == {} then {} else {instance: $whole} end)} else empty end),
      ($back[] | "wanted/\(.id)/\(.adapter_detail.cordoned_by)" as $step | select($looks[$step] == null)
       | {path: "tasks", body: {step: $step, member_id: .id, type: "probe.http", arguments: {port: port, path: "/wanted", attempts: 5, interval_seconds: 1}}});

def requests($w; $op): due($w; $op) as $d | {correlation: $op.correlation_id, trace: $op.trace_id} as $labels
    | (if $op.status == "accepted" or $op.begun == false then {begin: true} else {} end) as $begin
    | ((if $op.status == "cancelling" then {} else $begin end)
       + (if $d.blocked and $op.blocker_code != $d.blocked.code then {blocked: $d.blocked} elif $op.status == "blocked" and ($d.blocked | not) then {blocked: null} else {} end)
       + (if $d.members == {} then {} else {members: [$d.members[]]} end) + (if $d.steps == [] then {} else {steps: $d.steps} end)
       + (if $d.endpoint then {instance: {endpoints: ([$w.instance.endpoints[] | select(.name != $d.endpoint.name)] + [$d.endpoint])}} else {} end)) as $changes
    | (if $d.wait then {wait: $d.wait} else empty end),
      (if $changes == {} then empty else $labels + {path: "reports", body: ({operation_id: $op.id} + $changes)} end),
      (if $d.failure then empty else $d.tasks[] | $labels + {path: "tasks", body: {operation_id: $op.id, step, member_id: .member, type, arguments}} end),
      (if $d.failure then {outcome: "failed", failure: $d.failure} else $d.finish // empty end
       | $labels + {path: "operations/\($op.id)/finish", body: .});

# A port chosen by the id of the member: on a host without isolated networks members share the ports of the machine.
def hashed: explode | reduce .[] as $c (5381; (. * 33 + $c) % 4294967296) | 20000 + . % 12000;
(.members |= map(. + {port_by_id: (.id | hashed)})) as $w
| [($w.operations[] as $op | requests($w; $op)), (if $w.instance.status == "running" then watched($w) else empty end)] as $all
| ([$all[].wait // empty] | if length > 0 then min elif $w.instance.status == "running" then 30 else "-" end),
  ($all[] | select(.path) | "POST /runtime/instances/\($w.instance.id)/\(.path) \(.correlation // "-") \(.trace // "-")", ({fence: $fence} + .body | tojson))
JQ
)

place="$room/all"
mkdir -p "$place"
holder="${MOORING_HOLDER:-$(hostname)}-$$-$(openssl rand -hex 4)"
# The public key is the last 32 bytes of its DER form.
public=$(openssl pkey -in "$MOORING_KEY_FILE" -pubout -outform DER | tail -c 32 | base64url)
until printf '{"assertion":"%s"}' "$(assertion "key:$public" "${known_as%/oauth/token}/runtime/accounts" adapter)" |
    curl --silent --fail --max-time 30 --header 'Content-Type: application/json' --data-binary @- "$api/runtime/accounts" \
        >"$place/accounts"; do
    say warning "cannot list the accounts; retrying"
    sleep 1
done
children=
trap 'kill $children 2>/dev/null || true; wait || true; rm -rf "$room"; exit 0' TERM INT
for each in $(jq -r '.accounts[] | select(.apps | length == 0 or index("echo")) | "\(.service_account_id)/\(.key_id)"' "$place/accounts"); do
    serve "${each%/*}" "${each#*/}" &
    children="$children $!"
done
wait
rm -rf "$room"
