/** The small parts that every page is made of. */

import Check from "lucide-react/icons/check";
import Copy from "lucide-react/icons/copy";
import AlertTriangle from "lucide-react/icons/triangle-alert";
import { type ComponentProps, type ReactNode, useEffect, useState } from "react";
import { Problem } from "../api/client";
import { announce } from "./announcer";

type ButtonProps = ComponentProps<"button"> & {
  look?: "primary" | "plain" | "danger" | "ghost";
  /** Why the button cannot be used now: the title, which screen readers read as its description. */
  disabledReason?: string;
};

const LOOKS = {
  primary: "bg-accent text-accent-ink border-transparent hover:brightness-110",
  plain: "bg-panel text-ink border-line hover:bg-sunken",
  danger: "bg-panel text-bad border-line hover:bg-bad-soft",
  ghost: "bg-transparent text-muted border-transparent hover:bg-sunken hover:text-ink",
};

export function Button({ look = "plain", disabledReason, className = "", onClick, children, ...rest }: ButtonProps) {
  const isOff = Boolean(disabledReason) || rest.disabled;
  return (
    <button
      type="button"
      {...rest}
      disabled={rest.disabled}
      aria-disabled={isOff || undefined}
      title={disabledReason ?? rest.title}
      onClick={disabledReason ? (event) => event.preventDefault() : onClick}
      className={`inline-flex min-h-8 items-center justify-center gap-1.5 rounded-md border px-3 py-1 text-sm font-medium whitespace-nowrap transition-colors ${LOOKS[look]} ${isOff ? "cursor-not-allowed opacity-55" : ""} ${className}`}
    >
      {children}
    </button>
  );
}

/** The buttons of a row of a list. */
export function RowButtons({ children }: { children: ReactNode }) {
  return <span className="-my-1 inline-flex flex-wrap justify-end max-md:-ml-3 max-md:justify-start">{children}</span>;
}

export function Panel({ title, aside, children, className = "" }: PanelProps) {
  return (
    <section className={`min-w-0 rounded-lg border border-line bg-panel ${className}`}>
      {title && (
        <header className="flex min-h-11 flex-wrap items-center justify-between gap-2 border-b border-line px-4 py-2">
          <h2>{title}</h2>
          {aside}
        </header>
      )}
      {children}
    </section>
  );
}

interface PanelProps {
  title?: string;
  aside?: ReactNode;
  children: ReactNode;
  className?: string;
}

export function PageHead({ title, sub, children }: { title: ReactNode; sub?: ReactNode; children?: ReactNode }) {
  return (
    <div className="mb-5 flex flex-wrap items-start justify-between gap-3">
      <div className="min-w-0">
        <h1 className="break-words">{title}</h1>
        {sub && <p className="mt-1 text-muted">{sub}</p>}
      </div>
      {children && <div className="flex flex-wrap gap-2">{children}</div>}
    </div>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      aria-label={label}
      title={label}
      className="rounded p-1.5 text-muted hover:bg-sunken hover:text-ink"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => {
          setDone(true);
          announce("Copied");
          window.setTimeout(() => setDone(false), 1_500);
        });
      }}
    >
      {done ? <Check size={14} aria-hidden /> : <Copy size={14} aria-hidden />}
    </button>
  );
}

/** The same as a command of the CLI, to learn it or to put it into a script. */
export function CommandLine({ command }: { command: string }) {
  return (
    <div className="flex items-start gap-1 rounded-md bg-sunken py-1 pr-1 pl-3">
      <code className="min-w-0 flex-1 py-1 font-mono text-xs leading-5 break-words whitespace-pre-wrap">{command}</code>
      <CopyButton text={command} label="Copy the command" />
    </div>
  );
}

export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="mx-auto flex max-w-md flex-col items-center gap-3 px-4 py-10 text-center">
      <p className="font-semibold">{title}</p>
      {children && <div className="text-muted">{children}</div>}
      {command && (
        <div className="w-full text-left">
          <CommandLine command={command} />
        </div>
      )}
    </div>
  );
}

/** What went wrong, what to do, and the id that leads to it in every log. */
export function ProblemBox({ error, retry }: { error: unknown; retry?: () => void }) {
  const problem = error instanceof Problem ? error : null;
  return (
    <div role="alert" className="flex gap-3 rounded-lg border border-bad/40 bg-bad-soft p-4">
      <AlertTriangle size={18} className="mt-0.5 shrink-0 text-bad" aria-hidden />
      <div className="min-w-0 space-y-1">
        <p className="font-semibold">{problem?.title ?? "The console failed"}</p>
        <p className="break-words">{problem?.detail ?? String(error)}</p>
        {problem?.status === 403 && typeof problem.details.action === "string" ? (
          <p className="text-muted">
            This needs <code className="font-mono text-xs">{problem.details.action}</code>. An admin of the project or
            of the tenant can give you a role that has it.
          </p>
        ) : (
          problem?.remedy && <p className="text-muted">{problem.remedy.replaceAll("`", "")}</p>
        )}
        {problem?.correlationId && (
          <p className="flex items-center gap-1 font-mono text-xs text-muted">
            <span className="break-all">{problem.correlationId}</span>
            <CopyButton text={problem.correlationId} label="Copy the correlation id" />
          </p>
        )}
        {retry && (
          <Button onClick={retry} className="mt-2">
            Try again
          </Button>
        )}
      </div>
    </div>
  );
}

/** Grey bars in the shape of what will come; nothing at all for the first moment, so that a quick page does not flash. */
export function Skeleton({ rows = 4 }: { rows?: number }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setShown(true), 200);
    return () => window.clearTimeout(timer);
  }, []);
  return (
    <div role="status" className="space-y-3 p-4" aria-label="Loading">
      {shown &&
        Array.from({ length: rows }, (_, row) => <div key={row} className="h-5 animate-pulse rounded bg-sunken" />)}
    </div>
  );
}

interface DefinitionProps {
  label: string;
  /** Takes two columns of a list of definitions. */
  wide?: boolean;
  children: ReactNode;
}

export function Definition({ label, wide, children }: DefinitionProps) {
  return (
    <div className={`min-w-0 ${wide ? "col-span-2" : ""}`}>
      <dt className="text-xs text-muted">{label}</dt>
      <dd className="mt-0.5 break-words">{children}</dd>
    </div>
  );
}
