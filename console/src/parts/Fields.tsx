/** Labelled fields of dialogs and forms; the browser checks what is required and how long it may be. */
import { type ReactNode, useId } from "react";
import { Labelled } from "./SchemaForm";

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  help?: string;
  error?: string;
  required?: boolean;
  placeholder?: string;
}

interface TextFieldProps extends FieldProps {
  type?: "text" | "number" | "url";
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  min?: number;
  rows?: number;
}

export function TextField({ label, value, onChange, help, error, rows, type = "text", ...rest }: TextFieldProps) {
  const id = useId();
  const common = {
    ...rest,
    id,
    value,
    className: "field",
    "aria-describedby": [help && `${id}-help`, error && `${id}-error`].filter(Boolean).join(" ") || undefined,
    "aria-invalid": error ? true : undefined,
  };
  return (
    <Labelled id={id} label={label} required={rest.required} help={help} error={error}>
      {rows ? (
        <textarea {...common} rows={rows} onChange={(event) => onChange(event.target.value)} />
      ) : (
        <input {...common} type={type} autoComplete="off" onChange={(event) => onChange(event.target.value)} />
      )}
    </Labelled>
  );
}

/** Why somebody does it; the audit trail keeps it. */
export function ReasonField({ value, onChange, minLength = 10 }: Omit<FieldProps, "label"> & { minLength?: number }) {
  return (
    <TextField
      label="Reason"
      help={`A sentence of at least ${minLength} characters; it stands in the audit trail.`}
      value={value}
      onChange={onChange}
      required
      minLength={minLength}
      maxLength={1000}
      rows={2}
    />
  );
}

interface SelectFieldProps extends FieldProps {
  words: readonly { value: string; label: string }[];
  empty?: string;
}

export function SelectField({ label, value, onChange, help, required, words, empty }: SelectFieldProps) {
  const id = useId();
  return (
    <Labelled id={id} label={label} required={required} help={help}>
      <select
        id={id}
        className="field"
        required={required}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      >
        {empty !== undefined && <option value="">{empty}</option>}
        {words.map((each) => (
          <option key={each.value} value={each.value}>
            {each.label}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

interface CheckProps {
  label: ReactNode;
  checked: boolean;
  onChange: (checked: boolean) => void;
  required?: boolean;
}

export function CheckField({ label, checked, onChange, required }: CheckProps) {
  return (
    <label className="flex items-start gap-2">
      <input
        type="checkbox"
        className="mt-0.5 size-4 accent-accent"
        required={required}
        checked={checked}
        onChange={(event) => onChange(event.target.checked)}
      />
      <span className="min-w-0">{label}</span>
    </label>
  );
}
