/** The terminal: a document of its own, since xterm makes style elements, which the console's policy forbids. */
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { isProblem } from "../api/client";
import "../index.css";
import { Connection, type Opened, type Refused } from "./connection";
import { button, element, Notice, StatusLine } from "./elements";
import {
  addressOf,
  commandLine,
  end,
  openTerminals,
  type Place,
  placeOf,
  remember,
  type Subject,
  start,
  subjectOf,
} from "./session";

const TITLE_MAX = 60;
const SCROLLBACK_LINES = 10_000;

const root = document.getElementById("terminal") as HTMLElement;
const status = new StatusLine();
const notice = new Notice();
const title = element("h1", "truncate text-base font-semibold", "Terminal");
const sub = element("p", "truncate font-mono text-xs text-muted");
const screen = element("div", "min-h-0 flex-1 overflow-hidden bg-panel p-2");
const cli = element("code", "min-w-0 flex-1 truncate font-mono text-xs max-sm:hidden");
const list = element("ul", "divide-y divide-line");

let connection: Connection | null = null;

const term = new Terminal({
  allowProposedApi: false,
  cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace',
  fontSize: 13,
  scrollback: SCROLLBACK_LINES,
  screenReaderMode: true,
});
const fit = new FitAddon();
const search = new SearchAddon();

function colours(): void {
  const value = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = document.documentElement.classList.contains("dark");
  term.options.theme = {
    background: value("--panel"),
    foreground: value("--ink"),
    cursor: value("--accent"),
    selectionBackground: isDark ? "#2f4a55" : "#bfe3de",
    black: isDark ? "#2a363d" : "#14212b",
    red: value("--bad"),
    green: value("--good"),
    yellow: value("--warn"),
    blue: value("--busy"),
    magenta: isDark ? "#d7a6ff" : "#7b3fb0",
    cyan: value("--accent"),
    white: isDark ? "#c6d3da" : "#55646f",
    brightBlack: value("--muted"),
  };
}

/** What a program calls its window: shown as text, in one short line. */
function named(text: string): string {
  return Array.from(text, (each) => (each < " " ? "" : each))
    .slice(0, TITLE_MAX)
    .join("");
}

function divider(text: string): void {
  term.write(`\r\n\x1b[2m── ${text} ──\x1b[0m\r\n`);
}

function listener(place: Place, subject: Subject) {
  const another = () => button("Start another", () => void begin({ ...place, terminalId: null }, subject), "primary");
  return {
    opening: () => status.set("busy", "connecting: the node dials"),
    opened: (found: Opened, lost: number) => {
      notice.hide();
      status.set("good", found.recorded ? "connected, recorded" : "connected");
      const command = found.argv[1] === "-c" ? "login shell" : found.argv.join(" ");
      sub.textContent = `${subject.member?.name ?? subject.instance.name} · user ${found.user} · ${command}`;
      if (lost > 0) divider(`${lost.toLocaleString()} bytes of earlier output are no longer kept`);
      term.focus();
    },
    output: (data: Uint8Array, shown: () => void) => term.write(data, shown),
    exited: (code: string) => {
      remember(null);
      const meaning = code === "" ? "ended" : `ended with exit code ${code}`;
      status.set(code === "0" ? "quiet" : "warn", meaning);
      notice.show(code === "0" ? "quiet" : "warn", `The command ${meaning}.`, "", another());
    },
    refused: (why: Refused) => refused(why, another()),
    retrying: (attempt: number, seconds: number) => {
      status.set("warn", "reconnecting");
      notice.show("warn", "The connection broke.", `What you see is kept. Attempt ${attempt} of 5 in ${seconds} s.`);
    },
    gaveUp: () => {
      status.set("bad", "not connected");
      const retry = button("Connect again", () => connection?.again(), "primary");
      notice.show("bad", "The server does not answer.", "The command may still run; come back within a minute.", retry);
    },
  };
}

function refused(why: Refused, another: HTMLElement): void {
  const id = why.correlationId ? `(${why.correlationId})` : "";
  if (why.terminal === "taken_over") {
    status.set("warn", "open in another window");
    const back = button("Use it here", () => connection?.again(), "primary");
    notice.show("warn", "Another window shows this terminal now.", "", back);
    return;
  }
  remember(null);
  if (why.code === "not_found") {
    status.set("quiet", "gone");
    notice.show("quiet", "This terminal has ended.", "It is kept for a minute without a window.", another);
  } else if (why.code === "permission_denied" || why.code === "unauthenticated") {
    status.set("bad", "no longer allowed");
    notice.show("bad", "The terminal was closed:", `${why.detail}. ${id}`);
  } else {
    status.set("bad", "closed");
    notice.show("bad", "The terminal was closed:", `${why.detail}. ${id}`, another);
  }
}

async function begin(place: Place, subject: Subject): Promise<void> {
  connection?.close();
  status.set("busy", "connecting");
  notice.hide();
  try {
    fit.fit();
    let ticket: string | null = null;
    let terminalId = place.terminalId;
    if (terminalId === null) {
      term.reset();
      const made = await start(place, subject, { columns: term.cols, rows: term.rows });
      terminalId = made.id;
      ticket = made.ticket;
      remember(terminalId);
    }
    connection = new Connection(addressOf(place, terminalId), ticket, listener(place, subject));
    connection.connect();
    connection.resize(term.cols, term.rows);
  } catch (error) {
    failed(error);
  }
}

function failed(error: unknown): void {
  status.set("bad", "not connected");
  if (isProblem(error, 401)) {
    location.assign(`/console/sign-in?to=${encodeURIComponent(location.pathname + location.search)}`);
    return;
  }
  const detail = isProblem(error) ? `${error.detail} ${error.remedy.replaceAll("`", "")}` : String(error);
  notice.show("bad", isProblem(error) ? `${error.title}.` : "The page failed.", detail);
}

async function showTerminals(place: Place): Promise<void> {
  const items = await openTerminals(place.projectId).catch(() => []);
  list.replaceChildren(
    ...items.map((each) => {
      const own = each.id === placeOf(location)?.terminalId;
      const stop = button("End", () => void end(place.projectId, each.id).then(() => showTerminals(place), failed));
      stop.setAttribute("aria-label", `End the terminal of ${new Date(each.opened_at).toLocaleTimeString()}`);
      const text = element(
        "span",
        "min-w-0 flex-1",
        element("span", "block truncate font-mono text-xs", each.owner.split("/")[1] ?? each.owner),
        element(
          "span",
          "block text-xs text-muted",
          `${each.user}, since ${new Date(each.opened_at).toLocaleTimeString()}${own ? ", this window" : each.viewed ? ", in another window" : ""}`,
        ),
      );
      return element("li", "flex items-center gap-3 px-3 py-2", text, stop);
    }),
  );
  if (items.length === 0)
    list.append(element("li", "px-3 py-2 text-xs text-muted", "You have no open terminals here."));
}

function searchField(): HTMLElement {
  const field = element("input", "field min-w-0 flex-1 py-1 sm:w-40 sm:flex-none");
  field.type = "search";
  field.placeholder = "Find in output";
  field.setAttribute("aria-label", "Find in output");
  const find = (event: KeyboardEvent | InputEvent) => {
    const options = { incremental: !(event instanceof KeyboardEvent) };
    if (event instanceof KeyboardEvent && event.key === "Escape") term.focus();
    else if (event instanceof KeyboardEvent && event.key === "Enter" && event.shiftKey)
      search.findPrevious(field.value);
    else if (!(event instanceof KeyboardEvent) || event.key === "Enter") search.findNext(field.value, options);
  };
  field.addEventListener("input", (event) => find(event as InputEvent));
  field.addEventListener("keydown", find);
  return field;
}

function head(place: Place): HTMLElement {
  const mark = element("img", "size-6");
  mark.src = `${import.meta.env.BASE_URL}mark.svg`;
  mark.alt = "Mooring";
  const back = element("a", "shrink-0", mark);
  back.href = `/console/workloads/${place.instanceId}?tab=members`;
  back.title = "To the workload";
  const copy = button("Copy", () => void navigator.clipboard.writeText(term.getSelection()));
  copy.title = "Copy the selection (Ctrl+Shift+C)";
  const paste = button(
    "Paste",
    () =>
      void navigator.clipboard
        .readText()
        .then((text) => term.paste(text))
        .catch(failed),
  );
  paste.title = "Paste (Ctrl+Shift+V)";
  const summary = element(
    "summary",
    "inline-flex min-h-8 list-none whitespace-nowrap items-center rounded-md border border-line bg-panel px-3 py-1 text-sm font-medium hover:bg-sunken",
    "My terminals",
  );
  const menu = element(
    "details",
    "relative",
    summary,
    element(
      "div",
      "absolute right-0 z-10 mt-1 w-80 max-w-[85vw] rounded-lg border border-line bg-panel shadow-lg",
      list,
    ),
  );
  menu.addEventListener("toggle", () => menu.open && void showTerminals(place));
  return element(
    "header",
    "flex shrink-0 flex-wrap items-center gap-x-3 gap-y-2 border-b border-line bg-panel px-4 py-2",
    back,
    element("div", "min-w-0 flex-1 basis-40", title, sub),
    status.node,
    element("div", "flex w-full items-center gap-2 sm:w-auto", searchField(), copy, paste, menu),
  );
}

function foot(command: string): HTMLElement {
  cli.textContent = command;
  const keys = element("div", "flex gap-1 sm:hidden");
  for (const [label, data] of [
    ["Esc", "\x1b"],
    ["Tab", "\t"],
    ["^C", "\x03"],
    ["↑", "\x1b[A"],
    ["↓", "\x1b[B"],
  ] as const)
    keys.append(
      button(
        label,
        () => {
          connection?.input(data);
          term.focus();
        },
        "key",
      ),
    );
  const copy = button("Copy command", () => void navigator.clipboard.writeText(command));
  return element(
    "footer",
    "flex shrink-0 flex-wrap items-center gap-3 border-t border-line bg-panel px-4 py-1.5",
    keys,
    cli,
    copy,
  );
}

function mount(place: Place): void {
  root.replaceChildren(head(place), notice.node, screen);
  colours();
  term.loadAddon(fit);
  term.loadAddon(search);
  term.open(screen);
  fit.fit();
  term.onData((text) => connection?.input(text));
  term.onBinary((text) => connection?.bytes(Uint8Array.from(text, (each) => each.charCodeAt(0))));
  term.onResize(({ cols, rows }) => connection?.resize(cols, rows));
  term.onTitleChange((text) => {
    document.title = `${named(text) || "Terminal"} · Mooring`;
  });
  term.attachCustomKeyEventHandler((event) => {
    if (!(event.ctrlKey && event.shiftKey && event.code === "KeyC") || event.type !== "keydown") return true;
    event.preventDefault();
    void navigator.clipboard.writeText(term.getSelection());
    return false;
  });
  new ResizeObserver(() => fit.fit()).observe(screen);
  new MutationObserver(colours).observe(document.documentElement, { attributeFilter: ["class"] });
}

async function main(): Promise<void> {
  const place = placeOf(location);
  if (place === null) {
    root.replaceChildren(
      element("p", "p-6", "This address names no terminal. Open one from the members of a workload."),
    );
    return;
  }
  mount(place);
  status.set("busy", "connecting");
  try {
    const subject = await subjectOf(place);
    title.textContent = subject.instance.name;
    sub.textContent = subject.member?.name ?? "the app's terminal";
    document.title = `${subject.instance.name} · Terminal · Mooring`;
    root.append(foot(commandLine(subject)));
    await begin(place, subject);
  } catch (error) {
    failed(error);
  }
}

void main();
