/** The logs of a workload: all members as one, followed, searched, and downloaded. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import Download from "lucide-react/icons/download";
import { type FormEvent, useEffect, useMemo, useRef, useState } from "react";
import { type Instance, isProblem } from "../../api/client";
import { members as membersQuery } from "../../api/queries/runtime";
import { Clock } from "../../parts/time";
import { Button, CommandLine, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { segments } from "./ansi";
import { type Line, type Log, useLog } from "./useLog";

const LANES = ["border-accent", "border-busy", "border-warn", "border-good", "border-bad", "border-muted"];

export function lineKey(line: Line): string {
  return `${line.member_id.slice(-6)}.${line.service}.${line.offset}`;
}

export function Logs({ instance }: { instance: Instance }) {
  const { member, grep, regex, line } = useSearch({ from: "/shell/workloads/$id" });
  const navigate = useNavigate({ from: "/workloads/$id" });
  const listed = useQuery(membersQuery(instance));
  const [paused, setPaused] = useState(line !== undefined);
  const [wrap, setWrap] = useState(true);
  const [times, setTimes] = useState(false);
  const log = useLog(instance, member, grep ? { grep, regex: regex === true } : null, paused);
  const all = listed.data?.items ?? [];
  const go = (change: { member?: string; grep?: string; regex?: true; line?: string }) =>
    void navigate({ search: { tab: "logs", member, grep, regex, line, ...change }, replace: true });
  const query = new URLSearchParams({ ...(member ? { member } : {}), ...(grep ? { grep } : {}) });
  const exported = `/api/v1/projects/${instance.project_id}/app-instances/${instance.id}/log/export?${query}`;
  return (
    <Panel
      title="Logs"
      aside={
        <div className="flex flex-wrap items-center gap-2">
          <select
            aria-label="Member"
            className="field w-auto py-1"
            value={member ?? ""}
            onChange={(event) => go({ member: event.target.value || undefined })}
          >
            <option value="">All members</option>
            {all.map((each) => (
              <option key={each.id} value={each.id}>
                {each.name} ({each.status})
              </option>
            ))}
          </select>
          <Toggle label="Wrap" on={wrap} set={setWrap} />
          <Toggle label="Times" on={times} set={setTimes} />
          <a
            className="inline-flex min-h-8 items-center gap-1.5 rounded-md border border-line px-3 py-1 text-sm font-medium hover:bg-sunken"
            href={exported}
            download
          >
            <Download size={14} aria-hidden /> Download
          </a>
          {!grep && (
            <Button look={paused ? "primary" : "plain"} aria-pressed={paused} onClick={() => setPaused(!paused)}>
              {paused ? `Follow${log.waiting > 0 ? ` (${log.waiting} new)` : ""}` : "Pause"}
            </Button>
          )}
        </div>
      }
    >
      <SearchBar key={`${grep}${regex}`} grep={grep ?? ""} regex={regex === true} go={go} />
      <Body
        instance={instance}
        log={log}
        names={[...new Set(log.lines.map((each) => each.member))]}
        searched={grep}
        follows={!paused && !grep}
        wrap={wrap}
        times={times}
        marked={line}
        mark={(key) => {
          setPaused(true);
          go({ line: key });
        }}
      />
    </Panel>
  );
}

function Toggle({ label, on, set }: { label: string; on: boolean; set: (on: boolean) => void }) {
  return (
    <label className="flex items-center gap-1.5 text-xs">
      <input
        type="checkbox"
        className="size-4 accent-accent"
        checked={on}
        onChange={(event) => set(event.target.checked)}
      />
      {label}
    </label>
  );
}

interface SearchBarProps {
  grep: string;
  regex: boolean;
  go: (change: { grep?: string; regex?: true; line?: string }) => void;
}

/** A search looks through everything that the nodes store, not only through what the page has. */
function SearchBar({ grep, regex, go }: SearchBarProps) {
  const [text, setText] = useState(grep);
  const [isPattern, setPattern] = useState(regex);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    go({ grep: text || undefined, regex: (isPattern && text !== "") || undefined, line: undefined });
  };
  return (
    <form onSubmit={submit} className="flex flex-wrap items-center gap-2 border-b border-line px-4 py-2">
      <input
        type="search"
        aria-label="Search in everything that is stored"
        placeholder="Search in everything that is stored"
        className="field min-w-40 flex-1 py-1"
        maxLength={280}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <Toggle label="Pattern" on={isPattern} set={setPattern} />
      <Button type="submit">Search</Button>
      {grep && <Button onClick={() => go({ grep: undefined, regex: undefined, line: undefined })}>Back to live</Button>}
    </form>
  );
}

interface BodyProps {
  instance: Instance;
  log: Log;
  names: string[];
  searched: string | undefined;
  follows: boolean;
  wrap: boolean;
  times: boolean;
  marked: string | undefined;
  mark: (key: string) => void;
}

function Body(props: BodyProps) {
  const { instance, log, searched } = props;
  if (log.error !== null && log.lines.length === 0) return <ProblemBox error={log.error} />;
  if (!log.isLoaded) return <Skeleton rows={8} />;
  const search = searched && ` --grep '${searched.replaceAll("'", "'\\''")}'`;
  const command = `mooring logs ${instance.name} --merged${search || " --follow"}`;
  return (
    <>
      <Bars log={log} searched={searched} />
      {log.lines.length > 0 ? (
        <Lines {...props} />
      ) : (
        <Empty title={searched ? "No stored line has this" : "There is no log yet"} command={command} />
      )}
      {log.lines.length > 0 && (
        <div className="border-t border-line p-2">
          <CommandLine command={command} />
        </div>
      )}
    </>
  );
}

/** What is missing, and why; the last known lines of a member that cannot be read stay in sight. */
function Bars({ log, searched }: { log: Log; searched: string | undefined }) {
  const bar = "border-b border-line px-4 py-1.5 text-xs";
  return (
    <>
      {searched && (
        <p role="status" className={`${bar} text-muted`}>
          {log.lines.length.toLocaleString()} {log.lines.length === 1 ? "line" : "lines"} found
          {log.isComplete ? "" : "; still searching"}
        </p>
      )}
      {isProblem(log.error) && <p className={`${bar} bg-warn-soft text-warn`}>{log.error.detail}. Trying again.</p>}
      {log.dropped > 0 && (
        <p className={`${bar} bg-warn-soft text-warn`}>
          The page keeps the newest 10,000 lines; {log.dropped.toLocaleString()} earlier ones are in the download.
        </p>
      )}
      {log.gaps.map((each) => (
        <p key={`${each.member_id}${each.service}${each.bytes}`} className={`${bar} bg-warn-soft text-warn`}>
          {each.member}: {each.bytes === null ? "some" : each.bytes.toLocaleString()} bytes before these lines are not
          shown.
        </p>
      ))}
      {log.unread.map((each) => (
        <div key={each.member_id} className={`${bar} bg-sunken text-muted`}>
          <p>
            {each.member}: {each.detail}
            {each.last_lines.length > 0 && "; its last known lines:"}
          </p>
          {each.last_lines.length > 0 && (
            <pre className="mt-1 max-h-32 overflow-auto font-mono break-words whitespace-pre-wrap text-ink">
              {each.last_lines
                .map((line) =>
                  segments(line)
                    .map((part) => part.text)
                    .join(""),
                )
                .join("\n")}
            </pre>
          )}
        </div>
      ))}
    </>
  );
}

function Lines({ log, names, follows, wrap, times, marked, mark }: BodyProps) {
  const scroller = useRef<HTMLElement>(null);
  const { lines } = log;
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 20,
    getItemKey: (index) => (lines[index] ? `${index}.${lineKey(lines[index])}` : index),
    overscan: 30,
  });
  const target = useMemo(() => lines.findIndex((each) => lineKey(each) === marked), [lines, marked]);
  useEffect(() => {
    if (follows && lines.length > 0) rows.scrollToIndex(lines.length - 1, { align: "end" });
  }, [follows, lines, rows]);
  useEffect(() => {
    if (target >= 0) rows.scrollToIndex(target, { align: "center" });
  }, [target, rows]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section ref={scroller} tabIndex={0} aria-label="Log lines" className="h-[60vh] overflow-auto">
      <div ref={(element) => element?.style.setProperty("height", `${rows.getTotalSize()}px`)} className="relative">
        {rows.getVirtualItems().map((row) => {
          const line = lines[row.index];
          if (!line) return null;
          const lane = LANES[names.indexOf(line.member) % LANES.length];
          return (
            <div
              key={row.key}
              data-index={row.index}
              ref={(element) => {
                element?.style.setProperty("transform", `translateY(${row.start}px)`);
                rows.measureElement(element);
              }}
              className={`absolute top-0 left-0 flex min-w-full items-baseline gap-2 border-l-4 px-3 font-mono text-xs leading-5 ${lane} ${wrap ? "w-full" : ""} ${row.index === target ? "bg-accent-soft" : ""}`}
            >
              <button
                type="button"
                className="w-24 shrink-0 truncate text-left text-muted hover:text-ink hover:underline max-sm:w-14"
                title={`${line.member}, ${line.service}: link to this line`}
                onClick={() => mark(lineKey(line))}
              >
                {line.member}
              </button>
              {times && <span className="w-16 shrink-0">{line.at ? <Clock at={line.at} /> : "–"}</span>}
              <span className={`min-w-0 flex-1 ${wrap ? "break-all whitespace-pre-wrap" : "whitespace-pre"}`}>
                {segments(line.text).map((part, index) => (
                  <span key={index} className={part.className}>
                    {part.text}
                  </span>
                ))}
              </span>
            </div>
          );
        })}
      </div>
    </section>
  );
}
