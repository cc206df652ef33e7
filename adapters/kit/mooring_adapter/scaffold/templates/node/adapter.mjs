// The adapter of example-app: what the app needs for each kind of operation. A plan is a pure function from the records
// to all steps of an operation; steps.mjs does those that are due, and asks for the plan again after each change.
import { serve } from "./mooring.mjs";
import { advanceWith, attempt } from "./steps.mjs";

const APP = "example-app";
const NEW = ["requested", "joining", "failed"];
const WORKING = ["ready", "degraded", "draining", "drained"];

// A port of its own: on a host without isolated networks all members share the ports of the machine.
function portOf({ id }) {
  let number = 5381;
  for (const character of id) number = (number * 33 + character.codePointAt(0)) % 2 ** 32;
  return 20_000 + (number % 12_000);
}

function task(member, name, type, args, soft = false) {
  return { name: `${name}/${member.id}`, member: member.id, type, arguments: args, soft };
}
const report = (member, values) => ({ member: member.id, report: values });
const endpoint = (member) => ({ member: member.id, endpoint: { name: "web", protocol: "http", port: portOf(member) } });

// What the configuration says; the instance keeps the old one until a `configure` has succeeded.
function greetingOf(view, operation) {
  const config = operation.kind === "configure" ? operation.request.input : view.instance.config;
  return config.greeting ?? "Hello";
}

// Write the program, start it, and see that it answers.
function start(member, version, greeting) {
  const port = portOf(member);
  const directory = `/srv/${APP}/${member.id}`;
  return [
    task(member, "files", "files.write", { files: [{ path: `${directory}/server.py`, mode: "0644", artifact: "program" }] }),
    task(member, "start", "service.start", {
      name: APP, argv: ["python3", "server.py", String(port)], directory,
      environment: { APP_VERSION: version, APP_GREETING: greeting },
      restart: { policy: "on_failure", backoff_seconds: 1, limit: 10 }, endpoint: { name: "web", port, protocol: "http" },
    }),
    task(member, "probe", "probe.http", { port, path: "/ready", attempts: 40, interval_seconds: 0.25 }),
  ];
}

// From nothing to a ready member.
const bringUp = (view, operation, member) => [
  report(member, { status: "joining" }),
  ...start(member, view.instance.pin.version, greetingOf(view, operation)),
  report(member, { status: "ready", health: "healthy" }),
];

// Look until it has no work, as long as the caller allows. If your app can refuse new work, let it do so first.
function quiet(operation, member) {
  const attempts = Math.min(Math.max(Math.floor(operation.request.timeout_seconds ?? 60), 1), 600);
  return task(member, "quiet", "probe.http", { port: portOf(member), path: "/quiet", interval_seconds: 1, attempts }, true);
}

const stop = (member) => task(member, "stop", "service.stop", { name: APP, grace_seconds: 5 }, true);

// Let its work end, then stop it; a failed member has nothing to stop.
function leave(operation, member) {
  if (!WORKING.includes(member.status) || member.allocation?.node_reachable === false) return [];
  const waits = operation.kind !== "decommission" && !operation.request.force;
  return [...(waits ? [quiet(operation, member)] : []), stop(member)];
}

function plan(view, operation) {
  const members = view.members.filter((each) => !["removing", "removed"].includes(each.status));
  const named = view.members.filter((each) => operation.member_ids.includes(each.id));
  const concerned = named.length ? named : members;
  switch (operation.kind) {
    case "deploy":
      return { tracks: concerned.map((each, index) => [...bringUp(view, operation, each), ...(index ? [] : [endpoint(each)])]) };
    case "add":
      return { tracks: concerned.map((each) => bringUp(view, operation, each)) };
    case "repair":
    case "reconcile":
      return { tracks: concerned.filter((each) => NEW.includes(each.status)).map((each) => bringUp(view, operation, each)) };
    case "drain":
      return drain(view, operation, named[0]);
    case "remove":
    case "decommission":
      return { tracks: concerned.map((each) => leave(operation, each)) };
    case "replace": { // the new member first
      const fresh = named.filter((each) => each.replaces_id);
      const old = named.filter((each) => !each.replaces_id);
      const up = fresh.flatMap((each) => [...bringUp(view, operation, each), endpoint(each)]);
      return { tracks: [[...up, ...old.flatMap((each) => leave(operation, each))]] };
    }
    case "upgrade":
    case "rollback":
    case "restart":
    case "configure":
      return roll(view, operation, members.filter((each) => WORKING.includes(each.status)));
    case "action":
      if (operation.request.action === "page.greet") return greet(view, operation);
      return failed("adapter_error", `there is no action ${operation.request.action}`);
    default:
      return failed("adapter_error", `no plan for ${operation.kind}`);
  }
}

const failed = (code, detail) => ({ failure: { code, detail, last_lines: [] } });

// Drained means seen to be quiet.
function drain(view, operation, member) {
  const look = quiet(operation, member);
  const { task: seen } = attempt(view, operation, look.name);
  if (["failed", "expired", "cancelled"].includes(seen?.status)) return failed("not_quiet", `${member.name} still has work`);
  return { tracks: [[look, report(member, { status: "drained" })]] };
}

// One track: stop and start one member after the other, so that the rest serves.
function roll(view, operation, members) {
  const version = operation.target_pin?.version ?? view.instance.pin.version;
  const greeting = greetingOf(view, operation);
  const after = (member) => (operation.target_pin ? [report(member, { version })] : []);
  return { tracks: [members.flatMap((each) => [stop(each), ...start(each, version, greeting), ...after(each)])] };
}

function greet(view, operation) {
  const ready = view.members.find((each) => each.status === "ready");
  if (!ready) return failed("unhealthy", "no member is ready");
  const step = task(ready, "greet", "process.run", { argv: ["echo", `Hello, ${operation.request.input.name}`] });
  const lines = attempt(view, operation, step.name).task?.last_lines ?? [];
  return { tracks: [[step]], output: { greeting: lines.at(-1) ?? "" } };
}

await serve(APP, advanceWith(plan));
