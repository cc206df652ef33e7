/** The log of one member, followed as it grows. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { answer, api, type Instance, isProblem } from "../../api/client";
import { members as membersQuery } from "../../api/queries/runtime";
import { Button, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

const CHARACTERS_MAX = 1_000_000;
const TAIL_LINES = 1_000;
const WAIT_SECONDS = 20;
const RETRY_MS = 2_000;

interface Log {
  text: string;
  cut: boolean;
  error: unknown;
  following: boolean;
}

export function Logs({ instance }: { instance: Instance }) {
  const { member } = useSearch({ from: "/shell/workloads/$id" });
  const navigate = useNavigate({ from: "/workloads/$id" });
  const listed = useQuery(membersQuery(instance));
  const all = listed.data?.items ?? [];
  const chosen = all.find((each) => each.id === member) ?? all.find((each) => each.status !== "removed") ?? all[0];
  if (listed.error) return <ProblemBox error={listed.error} />;
  if (!listed.data) return <Skeleton />;
  if (!chosen) return <Empty title="It has no members, so there is no log" command={`mooring logs ${instance.name}`} />;
  return (
    <MemberLog
      key={chosen.id}
      instance={instance}
      memberId={chosen.id}
      picker={
        <select
          aria-label="Member"
          className="field w-auto py-1"
          value={chosen.id}
          onChange={(event) => void navigate({ search: { tab: "logs", member: event.target.value } })}
        >
          {all.map((each) => (
            <option key={each.id} value={each.id}>
              {each.name} ({each.status})
            </option>
          ))}
        </select>
      }
    />
  );
}

interface MemberLogProps {
  instance: Instance;
  memberId: string;
  picker: React.ReactNode;
}

function MemberLog({ instance, memberId, picker }: MemberLogProps) {
  const [isFollowing, setFollowing] = useState(true);
  const [find, setFind] = useState("");
  const log = useLog(instance, memberId, isFollowing);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isFollowing && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [log.text, isFollowing]);
  const lines = log.text.split("\n");
  const shown = find ? lines.filter((each) => each.toLowerCase().includes(find.toLowerCase())) : lines;
  return (
    <Panel
      title="Log"
      aside={
        <div className="flex flex-wrap items-center gap-2">
          <input
            type="search"
            aria-label="Show only lines with"
            placeholder="Only lines with"
            className="field w-40 py-1"
            value={find}
            onChange={(event) => setFind(event.target.value)}
          />
          {picker}
          <Button aria-pressed={isFollowing} onClick={() => setFollowing(!isFollowing)}>
            {isFollowing ? "Pause" : "Follow"}
          </Button>
        </div>
      }
    >
      {log.error !== null && log.text === "" ? (
        isProblem(log.error, 404) || isProblem(log.error, 409) ? (
          <Empty title="There is no log yet" command={`mooring logs ${instance.name} --follow`}>
            {isProblem(log.error) && log.error.detail}
          </Empty>
        ) : (
          <ProblemBox error={log.error} />
        )
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
        <section ref={end} tabIndex={0} aria-label="Log lines" className="h-[60vh] overflow-auto p-4">
          {log.cut && <p className="mb-2 text-xs text-warn">The beginning is not shown.</p>}
          <pre className="font-mono text-xs leading-5 break-words whitespace-pre-wrap">{shown.join("\n")}</pre>
        </section>
      )}
    </Panel>
  );
}

function useLog(instance: Instance, memberId: string, follow: boolean): Log {
  const [log, setLog] = useState<Log>({ text: "", cut: false, error: null, following: true });
  const offset = useRef<number | null>(null);
  const name = useRef<string | undefined>(undefined);
  useEffect(() => {
    const aborted = new AbortController();
    const read = async () => {
      while (!aborted.signal.aborted && follow) {
        try {
          const part = await answer(
            api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/members/{member_id}/log", {
              params: {
                path: { project_id: instance.project_id, instance_id: instance.id, member_id: memberId },
                query:
                  offset.current === null
                    ? { tail: TAIL_LINES }
                    : { offset: offset.current, wait: WAIT_SECONDS, log: name.current || undefined },
              },
              signal: aborted.signal,
            }),
          );
          if (aborted.signal.aborted) return;
          offset.current = part.next_offset;
          name.current = part.log;
          setLog((before) => ({
            text: (before.text + part.text).slice(-CHARACTERS_MAX),
            cut: before.cut || part.truncated_before || (before.text === "" && part.offset > 0),
            error: null,
            following: true,
          }));
        } catch (error) {
          if (aborted.signal.aborted) return;
          setLog((before) => ({ ...before, error, following: false }));
          await new Promise((resume) => window.setTimeout(resume, RETRY_MS));
        }
      }
    };
    void read();
    return () => aborted.abort();
  }, [instance.project_id, instance.id, memberId, follow]);
  return log;
}
