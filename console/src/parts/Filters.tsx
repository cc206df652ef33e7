/** The filters above a list. What they are set to stands in the URL; the page owns it. */
import { type ReactNode, useEffect, useState } from "react";
import { Button } from "./ui";

const TYPING_MS = 250;

interface FilterBarProps {
  isFiltered: boolean;
  clear: () => void;
  children: ReactNode;
}

export function FilterBar({ isFiltered, clear, children }: FilterBarProps) {
  return (
    <search className="mb-4 flex flex-wrap items-center gap-2">
      {children}
      {isFiltered && (
        <Button look="ghost" onClick={clear}>
          Clear
        </Button>
      )}
    </search>
  );
}

interface TextFilterProps {
  label: string;
  placeholder?: string;
  value: string | undefined;
  /** Called when the typing pauses. */
  onChange: (value: string | undefined) => void;
}

export function TextFilter({ label, placeholder, value = "", onChange }: TextFilterProps) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return;
    const timer = window.setTimeout(() => onChange(typed || undefined), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [typed, value, onChange]);
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={placeholder ?? label}
      maxLength={64}
      className="field w-full sm:w-56"
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
    />
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  words: readonly T[];
  value: T | undefined;
  onChange: (value: T | undefined) => void;
}

export function Choice<T extends string>({ label, words, value, onChange }: ChoiceProps<T>) {
  return (
    <select
      aria-label={label}
      className="field w-auto"
      value={value ?? ""}
      onChange={(event) => onChange(words.find((each) => each === event.target.value))}
    >
      <option value="">{label}: any</option>
      {words.map((each) => (
        <option key={each} value={each}>
          {each.replaceAll("_", " ")}
        </option>
      ))}
    </select>
  );
}

interface SwitchProps {
  label: string;
  value: boolean | undefined;
  onChange: (value: true | undefined) => void;
}

export function Switch({ label, value, onChange }: SwitchProps) {
  return (
    <label className="flex items-center gap-2 px-1">
      <input
        type="checkbox"
        className="size-4 accent-accent"
        checked={value ?? false}
        onChange={(event) => onChange(event.target.checked || undefined)}
      />
      {label}
    </label>
  );
}
