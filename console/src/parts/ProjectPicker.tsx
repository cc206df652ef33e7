import type { Schemas } from "../api/client";
import { rememberProject } from "./session";

interface ProjectPickerProps {
  projects: Schemas["ProjectView"][];
  value: string | undefined;
  /** What the choice of no project is called; without it one is always chosen. */
  all?: string;
  onChange: (id: string | undefined) => void;
}

export function ProjectPicker({ projects, value, all, onChange }: ProjectPickerProps) {
  return (
    <select
      aria-label="Project"
      className="field w-auto max-w-56"
      value={value ?? ""}
      onChange={(event) => {
        if (event.target.value) rememberProject(event.target.value);
        onChange(event.target.value || undefined);
      }}
    >
      {all && <option value="">{all}</option>}
      {projects.map((each) => (
        <option key={each.id} value={each.id}>
          {each.slug}
        </option>
      ))}
    </select>
  );
}
