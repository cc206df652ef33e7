# What is due of a plan, as requests. A plan is a list of tracks that run side by side; the steps of a track run one after
# the other. Nothing is kept in memory: the platform's records say which steps are done, so that another process
# continues where this one was killed.
def is_over: IN("succeeded", "failed", "cancelled", "expired");
def is_working: IN("ready", "degraded", "draining", "drained");

# The newest attempt at a task: an interrupted one is made again as `<step>/2`, then `<step>/3`.
def attempt($v; $op; $step):
  def made($name): first($v.tasks[] | select(.operation_id == $op.id and .step == $name)) // null;
  first(($step, "\($step)/2", "\($step)/3") as $name | made($name) as $task
    | select($task == null or ($task.failure_code | IN("interrupted", "host_error") | not) or ($name | endswith("/3")))
    | {name: $name, task: $task});

def why($member; $name; $task):
  (if $member.failure_code == "node_lost" or ($task.status == "expired" and $member.allocation.node_reachable == false) then "node_lost"
   elif $task.status == "expired" then "step_timeout"
   else {timed_out: "step_timeout", cancelled: "cancelled", digest_mismatch: "artifact_refused", image_pull_failed: "image_pull_failed",
         too_large: "config_refused", path_refused: "config_refused", permission_denied: "permission_denied",
         probe_failed: "unhealthy", capacity: "no_capacity"}[$task.failure_code // ""] // "runtime_error" end) as $code
  | {code: $code, detail: "\($member.name): \($name): \($task.failure_detail // $task.failure_code // $code)",
     last_lines: ($task.last_lines // [])};

# One step: null when it is done, otherwise what is due: a task, a report, an endpoint, a failure, or waiting.
def due_step($v; $op): . as $step | first($v.members[] | select(.id == $step.member)) as $m
  | if .type then attempt($v; $op; .name) as {$name, $task}
      | if $task.status == "succeeded" then null
        elif $m.failure_code == "node_lost" or ($task.status // "" | is_over) then
          if $step.soft then null else {failure: why($m; $name; $task), member: $m} end
        elif $task then {waits: true}
        else {task: {step: $name, member_id: $m.id, type, arguments}} end
    elif .endpoint then
      if any($v.instance.endpoints[]; .name == $step.endpoint.name and .member_id == $m.id) then null
      else {endpoint: (.endpoint + {member_id: $m.id})} end
    else .report
      | if (if .status == "joining" then $m.status | is_working or . == "joining"
            elif .status == "ready" then $m.status | is_working
            elif .status then .status == $m.status
            else .version == $m.version end) then null
        elif $m.failure_code == "node_lost" then {failure: why($m; .status // "version"; null), member: $m}
        else {report: ({id: $m.id} + .)} end
    end;

def chunks: if length > 50 then .[:50], (.[50:] | chunks) else . end;

# The requests of one operation: a report, tasks, an end.
def due($v; $op; $plan):
  if $op.status == "cancelling" then
    if any($v.tasks[]; .operation_id == $op.id and (.status | is_over | not)) then empty
    else {path: "operations/\($op.id)/finish", body: {outcome: "cancelled"}} end
  else
    [$plan.tracks[]? | first(.[] | due_step($v; $op) | select(. != null))] as $found
    | (first($found[] | select(.failure)) // null) as $failed | ($plan.failure // $failed.failure) as $failure
    | ([$found[].report // empty] + if $failed.member.status == "joining" then [{id: $failed.member.id, status: "failed", failure: $failure}] else [] end) as $members
    | [$found[].endpoint // empty] as $endpoints
    | ((if $op.begun then {} else {begin: true} end)
       + (if $members == [] then {} else {members: $members} end)
       + (if $endpoints == [] then {} else {instance: {health: "healthy",
            endpoints: ([$v.instance.endpoints[] | select(.name | IN($endpoints[].name) | not)] + $endpoints)}} end)) as $report
    | (if $report == {} then empty else {path: "reports", body: ({operation_id: $op.id} + $report)} end),
      (if $failure then {path: "operations/\($op.id)/finish", body: {outcome: "failed", failure: $failure}}
       elif $found == [] then {path: "operations/\($op.id)/finish",
         body: ({outcome: "succeeded"} + if $plan.output then {output: $plan.output} else {} end)}
       else ([$found[].task // empty] | select(. != []) | chunks | {path: "tasks:batch", body: {operation_id: $op.id, tasks: .}}) end)
  end;

# All requests that are due now, two lines each; `planned` turns {view, operation} into a plan.
def requests($fence; planned): . as $v | .operations[] as $op
  | (try ({view: $v, operation: $op} | planned) catch {failure: {code: "adapter_error", detail: "the plan: \(.)", last_lines: []}}) as $plan
  | due($v; $op; $plan) | "\($op.id) \($op.correlation_id) \(.path)", ({fence: $fence} + .body | tojson);
