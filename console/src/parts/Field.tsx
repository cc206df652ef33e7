/** A labelled input of a dialog, with what it means below. */
import { type ComponentProps, useId } from "react";

type FieldProps = Omit<ComponentProps<"input">, "onChange" | "value"> & {
  label: string;
  help?: string;
  value: string;
  onChange: (value: string) => void;
};

export function Field({ label, help, value, onChange, ...rest }: FieldProps) {
  const id = useId();
  return (
    <div className="min-w-0">
      <label htmlFor={id} className="font-medium">
        {label}
      </label>
      <input
        {...rest}
        id={id}
        className="field mt-1"
        autoComplete="off"
        aria-describedby={help ? `${id}-help` : undefined}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      {help && (
        <p id={`${id}-help`} className="mt-1 text-xs text-muted">
          {help}
        </p>
      )}
    </div>
  );
}
