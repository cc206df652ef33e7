/**
 * Go anywhere by typing: pages, the parts of the workload that is open, and whatever the server finds by its name or id.
 * Opened with `/`. Pages come from the navigation, actions from what the server allows, so that neither is forgotten.
 */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useRouterState } from "@tanstack/react-router";
import { useEffect, useId, useRef, useState } from "react";
import type { Instance, Schemas } from "../api/client";
import { search } from "../api/queries/overview";
import type { PageEntry } from "../navigation";
import { TABS } from "../router";
import { announce } from "./announcer";
import { Status } from "./Status";

interface Hit {
  key: string;
  label: string;
  note?: string;
  status?: string;
  go: () => void;
}

const WAIT_MS = 150;
/** The command for what may be done with a workload and needs nothing but its name. */
const COMMANDS: Record<string, (name: string) => string> = {
  stop: (name) => `mooring stop ${name}`,
  restart: (name) => `mooring instances restart ${name}`,
  repair: (name) => `mooring instances repair ${name}`,
  reconcile: (name) => `mooring instances reconcile ${name}`,
  rollback: (name) => `mooring instances rollback ${name}`,
  connect: (name) => `mooring connect ${name}`,
};

export function Palette({ pages: offered, close }: { pages: PageEntry[]; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useId();
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const navigate = useNavigate();
  const found = useQuery(search(useSettled(typed.trim())));
  const shownWorkload = useOpenWorkload();

  useEffect(() => dialog.current?.showModal(), []);

  const pages: Hit[] = offered
    .filter((each) => each.label.toLowerCase().includes(typed.toLowerCase()))
    .map((each) => ({
      key: each.to,
      label: each.label,
      note: "page",
      go: () => void navigate({ to: each.to }),
    }));
  const things: Hit[] = typed.trim() === "" ? [] : (found.data?.items ?? []).map((each) => thing(each, navigate));
  const hits = [...pages, ...things, ...partsOf(shownWorkload, typed, navigate)];
  const current = Math.min(chosen, hits.length - 1);
  const open = (hit: Hit | undefined) => {
    if (!hit) return;
    close();
    hit.go();
  };

  return (
    <dialog
      ref={dialog}
      onClose={close}
      aria-label="Find"
      className="mt-[12vh] w-[min(34rem,calc(100vw-2rem))] rounded-lg border border-line bg-panel p-0 text-ink shadow-2xl"
    >
      <input
        role="combobox"
        aria-expanded
        aria-controls={list}
        aria-activedescendant={hits[current] ? `${list}-${current}` : undefined}
        aria-label="Find a page or a thing"
        placeholder="A page, or how a name or an id begins"
        className="w-full border-b border-line bg-transparent px-4 py-3 outline-none"
        value={typed}
        maxLength={64}
        onChange={(event) => {
          setTyped(event.target.value);
          setChosen(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setChosen(Math.min(current + 1, hits.length - 1));
          else if (event.key === "ArrowUp") setChosen(Math.max(current - 1, 0));
          else if (event.key === "Enter") open(hits[current]);
          else return;
          event.preventDefault();
        }}
      />
      <div role="listbox" id={list} aria-label="Found" className="max-h-80 overflow-y-auto p-2">
        {hits.map((hit, index) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are handled by the input, which keeps the focus
          <div
            key={hit.key}
            id={`${list}-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === current}
            onClick={() => open(hit)}
            className="flex cursor-pointer items-center gap-3 rounded-md px-3 py-2 hover:bg-sunken aria-selected:bg-accent-soft"
          >
            <span className="min-w-0 flex-1 truncate font-medium">{hit.label}</span>
            <span className="max-w-[45%] truncate text-xs text-muted">{hit.note}</span>
            {hit.status && <Status kind="instance" value={hit.status} />}
          </div>
        ))}
        {hits.length === 0 && (
          <p className="px-3 py-4 text-center text-muted">
            {found.error ? "The search does not answer; pages are found all the same." : "Nothing begins like this."}
          </p>
        )}
      </div>
    </dialog>
  );
}

/** The text when nobody typed for a moment, so that not every letter is a request. */
function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), WAIT_MS);
    return () => window.clearTimeout(timer);
  }, [text]);
  return settled;
}

/** The workload whose page is open, as its page has read it. */
function useOpenWorkload(): Instance | undefined {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const id = path.match(/\/workloads\/(ins_[a-z0-9]+)/)?.[1];
  return useQueryClient().getQueryData<Instance>(["instance", id]);
}

type Navigate = ReturnType<typeof useNavigate>;

/** The parts of the open workload's page, and the commands for what may be done with it now. */
function partsOf(instance: Instance | undefined, typed: string, navigate: Navigate): Hit[] {
  if (!instance) return [];
  const tabs = TABS.map(
    (tab): Hit => ({
      key: `tab ${tab}`,
      label: `${instance.name}: ${tab}`,
      note: "this workload",
      go: () => void navigate({ to: "/workloads/$id", params: { id: instance.id }, search: { tab } }),
    }),
  );
  const commands = instance.allowed_verbs.flatMap((verb): Hit[] => {
    const command = COMMANDS[verb]?.(instance.name);
    if (!command) return [];
    const go = () => void navigator.clipboard.writeText(command).then(() => announce("The command is copied"));
    return [{ key: `verb ${verb}`, label: command, note: "allowed now; copies the command", go }];
  });
  return [...tabs, ...commands].filter((each) => each.label.toLowerCase().includes(typed.trim().toLowerCase()));
}

/** Where a hit leads: to its page, or to the list that shows it; a thing without a page has its id copied. */
function thing(hit: Schemas["SearchHitView"], navigate: Navigate): Hit {
  const go = () => {
    if (hit.kind === "instance") return void navigate({ to: "/workloads/$id", params: { id: hit.id } });
    if (hit.kind === "project") return void navigate({ to: "/workloads", search: { project: hit.id } });
    if (hit.kind === "app") return void navigate({ to: "/catalog", search: { q: hit.name } });
    if (hit.kind === "allocation") return void navigate({ to: "/allocations/$id", params: { id: hit.id } });
    if (hit.kind === "node") return void navigate({ to: "/nodes/$id", params: { id: hit.id } });
    if (hit.kind === "artifact") return void navigate({ to: "/artifacts/$id", params: { id: hit.id } });
    void navigator.clipboard.writeText(hit.id).then(() => announce("Its id is copied"));
  };
  const hasPage = !["tenant", "user"].includes(hit.kind);
  return {
    key: hit.id,
    label: hit.kind === "artifact" ? `${hit.name.slice(0, 19)}…` : hit.name,
    note: `${hit.kind} · ${hasPage ? hit.detail : `${hit.detail}, copies the id`}`,
    status: hit.status ?? undefined,
    go,
  };
}
