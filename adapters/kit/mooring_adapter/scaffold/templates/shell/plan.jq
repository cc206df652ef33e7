# What example-app needs for each kind of operation: a pure function from the records to all steps of the operation.
include "steps";

def app: "example-app";
def directory: "/srv/\(app)/\(.id)";
# A port of its own: on a host without isolated networks all members share the ports of the machine.
def port: .id | explode | reduce .[] as $c (5381; (. * 33 + $c) % 4294967296) | 20000 + . % 12000;

def task($name; $type; $arguments): {name: "\($name)/\(.id)", member: .id, type: $type, arguments: $arguments};
def soft: . + {soft: true}; # a failure of the task does not fail the operation
def report($values): {member: .id, report: $values};
def endpoint: {member: .id, endpoint: {name: "web", protocol: "http", port: port}};
def failed($code; $detail): {failure: {code: $code, detail: $detail, last_lines: []}};

# What the configuration says; the instance keeps the old one until a `configure` has succeeded.
def greeting($v; $op): (if $op.kind == "configure" then $op.request.input else $v.instance.config end).greeting // "Hello";

# Write the program, start it, and see that it answers.
def start($version; $greeting):
  task("files"; "files.write"; {files: [{path: "\(directory)/server.py", mode: "0644", artifact: "program"}]}),
  task("start"; "service.start"; {
    name: app, argv: ["python3", "server.py", (port | tostring)], directory: directory,
    environment: {APP_VERSION: $version, APP_GREETING: $greeting},
    restart: {policy: "on_failure", backoff_seconds: 1, limit: 10}, endpoint: {name: "web", port: port, protocol: "http"}}),
  task("probe"; "probe.http"; {port: port, path: "/ready", attempts: 40, interval_seconds: 0.25});

# From nothing to a ready member.
def bring_up($v; $op): report({status: "joining"}), start($v.instance.pin.version; greeting($v; $op)), report({status: "ready", health: "healthy"});

# Look until it has no work, as long as the caller allows. If your app can refuse new work, let it do so first.
def quiet($op): task("quiet"; "probe.http"; {port: port, path: "/quiet", interval_seconds: 1,
  attempts: ([[$op.request.timeout_seconds // 60 | floor, 1] | max, 600] | min)}) | soft;
def stop: task("stop"; "service.stop"; {name: app, grace_seconds: 5}) | soft;

# Let its work end, then stop it; a failed member has nothing to stop.
def leave($op): select((.status | is_working) and .allocation.node_reachable != false)
  | (if $op.kind == "decommission" or $op.request.force then empty else quiet($op) end), stop;

# Drained means seen to be quiet.
def drain($v; $op): quiet($op) as $look | attempt($v; $op; $look.name).task as $seen
  | if $seen.status // "" | IN("failed", "expired", "cancelled") then failed("not_quiet"; "\(.name) still has work")
    else {tracks: [[$look, report({status: "drained"})]]} end;

# One track: stop and start one member after the other, so that the rest serves.
def roll($v; $op; $members): ($op.target_pin.version // $v.instance.pin.version) as $version
  | {tracks: [[$members[] | stop, start($version; greeting($v; $op)),
      (if $op.target_pin then report({version: $version}) else empty end)]]};

def greet($v; $op): (first($v.members[] | select(.status == "ready")) // null) as $ready
  | if $ready == null then failed("unhealthy"; "no member is ready")
    else ($ready | task("greet"; "process.run"; {argv: ["echo", "Hello, \($op.request.input.name)"]})) as $step
      | {tracks: [[$step]], output: {greeting: (attempt($v; $op; $step.name).task.last_lines // [""] | last // "")}} end;

def plan: .view as $v | .operation as $op
  | [$v.members[] | select(.status | IN("removing", "removed") | not)] as $members
  | [$v.members[] | select(.id | IN($op.member_ids[]))] as $named
  | (if $named == [] then $members else $named end) as $concerned
  | if $op.kind == "deploy" then {tracks: ([$concerned[] | [bring_up($v; $op)]] | .[0] += [$concerned[0] | endpoint])}
    elif $op.kind == "add" then {tracks: [$concerned[] | [bring_up($v; $op)]]}
    elif $op.kind | IN("repair", "reconcile") then
      {tracks: [$concerned[] | select(.status | IN("requested", "joining", "failed")) | [bring_up($v; $op)]]}
    elif $op.kind == "drain" then $named[0] | drain($v; $op)
    elif $op.kind | IN("remove", "decommission") then {tracks: [$concerned[] | [leave($op)]]}
    elif $op.kind == "replace" then # the new member first
      {tracks: [[($named[] | select(.replaces_id) | bring_up($v; $op), endpoint), ($named[] | select(.replaces_id == null) | leave($op))]]}
    elif $op.kind | IN("upgrade", "rollback", "restart", "configure") then roll($v; $op; [$members[] | select(.status | is_working)])
    elif $op.kind == "action" and $op.request.action == "page.greet" then greet($v; $op)
    else failed("adapter_error"; "no plan for \($op.kind) \($op.request.action // "")") end;
