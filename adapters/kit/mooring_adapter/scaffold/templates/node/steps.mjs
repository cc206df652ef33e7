// Does the steps of a plan that are due. A plan is a list of tracks that run side by side; the steps of a track run one
// after the other. Nothing is kept in memory: the platform's records say which steps are done, so that another process
// continues where this one was killed.
import { log } from "./mooring.mjs";

const OVER = ["succeeded", "failed", "cancelled", "expired"];
const WORKING = ["ready", "degraded", "draining", "drained"];
const AGAIN = ["interrupted", "host_error"]; // these say nothing about the app
const CODES = {
  timed_out: "step_timeout", cancelled: "cancelled", digest_mismatch: "artifact_refused", image_pull_failed: "image_pull_failed",
  too_large: "config_refused", path_refused: "config_refused", permission_denied: "permission_denied",
  probe_failed: "unhealthy", capacity: "no_capacity",
};

const isLost = (member) => member.failure_code === "node_lost" || member.allocation?.node_reachable === false;
const reached = { joining: ["joining", ...WORKING], ready: WORKING, drained: ["drained"] };

// The newest attempt at a task: an interrupted one is made again as `<step>/2`, then `<step>/3`.
export function attempt(view, operation, step) {
  for (const name of [step, `${step}/2`, `${step}/3`]) {
    const task = view.tasks.find((each) => each.operation_id === operation.id && each.step === name);
    if (!task || !AGAIN.includes(task.failure_code) || name.endsWith("/3")) return { name, task };
  }
}

function why(member, name, task) {
  const lost = isLost(member) && (!task || task.status === "expired" || member.failure_code === "node_lost");
  const code = lost ? "node_lost" : task?.status === "expired" ? "step_timeout" : CODES[task?.failure_code] ?? "runtime_error";
  const detail = `${member.name}: ${name}: ${task?.failure_detail ?? task?.failure_code ?? code}`;
  return { code, detail, last_lines: task?.last_lines ?? [] };
}

// What is due in one track: a task, a report about a member, an endpoint, a failure, or nothing because it waits.
function dueIn(track, view, operation) {
  for (const step of track) {
    const member = view.members.find((each) => each.id === step.member);
    if (step.type) {
      const { name, task } = attempt(view, operation, step.name);
      if (task?.status === "succeeded") continue;
      if (member.failure_code === "node_lost" || OVER.includes(task?.status)) {
        if (step.soft) continue;
        return { failure: why(member, name, task), member };
      }
      return task ? { waits: true } : { task: { step: name, member_id: member.id, type: step.type, arguments: step.arguments } };
    }
    if (step.endpoint) {
      const known = view.instance.endpoints.find((each) => each.name === step.endpoint.name);
      if (known?.member_id === member.id) continue;
      return { endpoint: { ...step.endpoint, member_id: member.id } };
    }
    const { status, version } = step.report;
    if (status ? reached[status].includes(member.status) : member.version === version) continue;
    if (member.failure_code === "node_lost") return { failure: why(member, status), member };
    return { report: { id: member.id, ...step.report } };
  }
  return null;
}

// What is due in an operation, as requests: a report, tasks, an end.
export function due(view, operation, plan) {
  if (operation.status === "cancelling") {
    const open = view.tasks.some((each) => each.operation_id === operation.id && !OVER.includes(each.status));
    return { report: {}, tasks: [], finish: open ? null : { outcome: "cancelled" } };
  }
  const found = (plan.tracks ?? []).map((track) => dueIn(track, view, operation)).filter(Boolean);
  const failed = found.find((each) => each.failure);
  const failure = plan.failure ?? failed?.failure;
  const members = found.map((each) => each.report).filter(Boolean);
  if (failed?.member.status === "joining") members.push({ id: failed.member.id, status: "failed", failure });
  const endpoints = found.map((each) => each.endpoint).filter(Boolean);
  const others = view.instance.endpoints.filter((each) => !endpoints.some((one) => one.name === each.name));
  const report = {
    ...(operation.begun ? {} : { begin: true }),
    ...(members.length ? { members } : {}),
    ...(endpoints.length ? { instance: { health: "healthy", endpoints: [...others, ...endpoints] } } : {}),
  };
  const done = found.length === 0 && { outcome: "succeeded", ...(plan.output ? { output: plan.output } : {}) };
  const tasks = failure ? [] : found.map((each) => each.task).filter(Boolean);
  return { report, tasks, finish: failure ? { outcome: "failed", failure } : done || null };
}

const failedBy = (code, detail) => ({ outcome: "failed", failure: { code, detail: detail.slice(0, 4000), last_lines: [] } });

async function perform({ report, tasks, finish }, operation, call) {
  const send = (path, body) => call("POST", path, { body, correlation: operation.correlation_id });
  const operation_id = operation.id;
  if (Object.keys(report).length) await send("/reports", { operation_id, ...report });
  for (let first = 0; first < tasks.length; first += 50) {
    const made = await send("/tasks:batch", { operation_id, tasks: tasks.slice(first, first + 50) });
    const refused = made.tasks.find((each) => each.refusal && !each.refusal.retryable && each.refusal.code !== "conflict");
    if (refused) finish = failedBy("adapter_error", `${refused.step}: ${refused.refusal.detail}`);
  }
  if (finish) await send(`/operations/${operation_id}/finish`, finish);
  return Boolean(Object.keys(report).length || tasks.length || finish);
}

// The end of an operation that cannot go on: the plan threw an error, or the platform refused for good.
function givenUp(operation, error) {
  log("error", "the operation fails", { operation: operation.id, correlation_id: operation.correlation_id, reason: error.stack });
  const code = error.status === 403 ? "permission_denied" : "adapter_error";
  return { report: operation.begun ? {} : { begin: true }, tasks: [], finish: failedBy(code, String(error.message)) };
}

function planned(view, operation, planOf) {
  try {
    return due(view, operation, planOf(view, operation));
  } catch (error) {
    return givenUp(operation, error);
  }
}

// Plan every open operation and do what is due; returns whether anything was done.
export const advanceWith = (planOf) => async (view, call) => {
  let did = false;
  for (const operation of view.operations) {
    try {
      did = (await perform(planned(view, operation, planOf), operation, call)) || did;
    } catch (error) {
      if (!error.isFinal) throw error;
      did = (await perform(givenUp(operation, error), operation, call)) || did;
    }
  }
  return did;
};
