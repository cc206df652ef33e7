/** The same as a command, as a request and as YAML; it follows the form, and hides what a form hides. */
import { useState } from "react";
import { CommandLine } from "./ui";

interface SameAsProps {
  command: string;
  method: string;
  path: string;
  body: unknown;
}

const FORMS = ["CLI", "API", "YAML"] as const;

export function SameAs({ command, method, path, body }: SameAsProps) {
  const [form, setForm] = useState<(typeof FORMS)[number]>("CLI");
  const text = {
    CLI: command,
    API: `${method} ${path}\nContent-Type: application/json\n\n${JSON.stringify(body, null, 2)}`,
    YAML: yaml(body),
  }[form];
  return (
    <div className="space-y-2">
      <div className="flex items-center gap-1 text-xs">
        <span className="mr-1 text-muted">The same as</span>
        {FORMS.map((each) => (
          <button
            key={each}
            type="button"
            aria-pressed={each === form}
            onClick={() => setForm(each)}
            className={`rounded px-2 py-1 font-medium ${each === form ? "bg-accent-soft text-accent" : "text-muted hover:bg-sunken"}`}
          >
            {each}
          </button>
        ))}
      </div>
      <CommandLine command={text} />
    </div>
  );
}

/** JSON values as YAML: maps and lists in block style, texts quoted as JSON, which YAML reads. */
export function yaml(value: unknown, indent = ""): string {
  if (Array.isArray(value) && value.length > 0)
    return value.map((each) => `${indent}- ${inline(each, `${indent}  `)}`).join("\n");
  if (typeof value === "object" && value !== null && Object.keys(value).length > 0)
    return Object.entries(value)
      .map(([name, each]) => `${indent}${word(name)}: ${inline(each, `${indent}  `)}`)
      .join("\n");
  return JSON.stringify(value ?? null);
}

function inline(value: unknown, indent: string): string {
  const isNested = typeof value === "object" && value !== null && Object.keys(value).length > 0;
  return isNested ? `\n${yaml(value, indent)}` : word(value);
}

function word(value: unknown): string {
  return typeof value === "string" &&
    /^[a-zA-Z][a-zA-Z0-9_-]*$/.test(value) &&
    !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value)
    ? value
    : JSON.stringify(value ?? null);
}
