/** Go anywhere by typing: pages, and workloads by name or id. Opened with `/`. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useId, useRef, useState } from "react";
import { instances } from "../api/queries/runtime";
import type { PageEntry } from "../navigation";
import { Status } from "./Status";
import { useScope } from "./session";

interface Hit {
  key: string;
  label: string;
  note?: string;
  status?: string;
  go: () => void;
}

export function Palette({ pages: offered, close }: { pages: PageEntry[]; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useId();
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const navigate = useNavigate();
  const { tenant, project } = useScope();
  const found = useQuery({
    ...instances(tenant, { q: typed.trim() || undefined, project, limit: 8 }),
    refetchInterval: false,
  });

  useEffect(() => dialog.current?.showModal(), []);

  const pages: Hit[] = offered
    .filter((each) => each.label.toLowerCase().includes(typed.toLowerCase()))
    .map((each) => ({
      key: each.to,
      label: each.label,
      note: "page",
      go: () => void navigate({ to: each.to }),
    }));
  const workloads: Hit[] = (found.data?.items ?? []).map((each) => ({
    key: each.id,
    label: each.name,
    note: each.app,
    status: each.status,
    go: () => void navigate({ to: "/workloads/$id", params: { id: each.id } }),
  }));
  const hits = [...pages, ...workloads];
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
        aria-label="Find a page or a workload"
        placeholder="A page, or the name or id of a workload"
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
            <span className="text-xs text-muted">{hit.note}</span>
            {hit.status && <Status kind="instance" value={hit.status} />}
          </div>
        ))}
        {hits.length === 0 && <p className="px-3 py-4 text-center text-muted">Nothing has such a name.</p>}
      </div>
    </dialog>
  );
}
