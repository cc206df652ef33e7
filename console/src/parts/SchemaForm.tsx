/**
 * A form for the configuration of an app, drawn from its `config_schema`.
 *
 * The server validates; this shows fields, their limits and the hindrances that belong to them. Fields that need no
 * attention (`x-form.advanced`) are folded. An empty field is left out, so that the default of the manifest applies.
 */
import { type ReactNode, useId, useState } from "react";

export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  writeOnly?: boolean;
  "x-form"?: {
    order?: number;
    group?: string;
    advanced?: boolean;
    placeholder?: string;
    help?: string;
    widget?: string;
  };
}

export type Config = Record<string, unknown>;

interface SchemaFormProps {
  schema: Schema;
  value: Config;
  onChange: (value: Config) => void;
  /** What the server says about a field, by its name. */
  errors?: Record<string, string>;
}

export function SchemaForm({ schema, value, onChange, errors = {} }: SchemaFormProps) {
  const fields = Object.entries(schema.properties ?? {}).sort(
    ([, one], [, other]) => (one["x-form"]?.order ?? 1_000) - (other["x-form"]?.order ?? 1_000),
  );
  const plain = fields.filter(([, each]) => !each["x-form"]?.advanced);
  const advanced = fields.filter(([, each]) => each["x-form"]?.advanced);
  const set = (name: string, next: unknown) => {
    const { [name]: _, ...others } = value;
    onChange(next === undefined ? others : { ...others, [name]: next });
  };
  const draw = ([name, each]: [string, Schema]) => (
    <SchemaField
      key={name}
      name={name}
      schema={each}
      value={value[name]}
      required={schema.required?.includes(name) ?? false}
      error={errors[name]}
      onChange={(next) => set(name, next)}
    />
  );
  if (fields.length === 0) return <p className="text-muted">This app has nothing to configure.</p>;
  return (
    <div className="space-y-4">
      {grouped(plain).map(({ group, fields }) =>
        group ? (
          <fieldset key={group} className="space-y-4 rounded-md border border-line p-3">
            <legend className="px-1 text-xs font-medium text-muted">{group}</legend>
            {fields.map(draw)}
          </fieldset>
        ) : (
          fields.map(draw)
        ),
      )}
      {advanced.length > 0 && (
        <details>
          <summary className="text-sm font-medium text-muted">Advanced ({advanced.length})</summary>
          <div className="mt-3 space-y-4">{advanced.map(draw)}</div>
        </details>
      )}
    </div>
  );
}

type Field = [string, Schema];

/** Fields below the heading that their hint names; those without one come first. */
function grouped(fields: Field[]): { group: string; fields: Field[] }[] {
  const found = new Map<string, Field[]>([["", []]]);
  for (const each of fields) {
    const group = each[1]["x-form"]?.group ?? "";
    found.set(group, [...(found.get(group) ?? []), each]);
  }
  return [...found].map(([group, own]) => ({ group, fields: own }));
}

interface FieldProps {
  name: string;
  schema: Schema;
  value: unknown;
  required: boolean;
  error?: string;
  onChange: (value: unknown) => void;
}

function SchemaField({ name, schema, value, required, error, onChange }: FieldProps) {
  const id = useId();
  const label = schema.title ?? name;
  const described = [schema.description && `${id}-help`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  const common = { id, "aria-describedby": described, "aria-invalid": error ? true : undefined, required };
  if (schema.type === "boolean")
    return (
      <div className="flex items-start gap-2">
        <input
          {...common}
          required={undefined}
          type="checkbox"
          className="mt-1 size-4 accent-accent"
          checked={Boolean(value ?? schema.default)}
          onChange={(event) => onChange(event.target.checked)}
        />
        <div>
          <label htmlFor={id} className="font-medium">
            {label}
          </label>
          <Help id={id} text={schema.description} error={error} />
        </div>
      </div>
    );
  return (
    <Labelled
      id={id}
      label={label}
      required={required}
      help={schema["x-form"]?.help ?? schema.description}
      error={error}
    >
      {control(schema, value, onChange, common)}
    </Labelled>
  );
}

type Common = { id: string; "aria-describedby"?: string; "aria-invalid"?: boolean; required: boolean };

function control(schema: Schema, value: unknown, onChange: (value: unknown) => void, common: Common): ReactNode {
  const placeholder = schema["x-form"]?.placeholder ?? (schema.default === undefined ? "" : String(schema.default));
  if (schema.enum)
    return (
      <select
        {...common}
        className="field"
        value={String(value ?? schema.default ?? "")}
        onChange={(event) => onChange(schema.enum?.find((each) => String(each) === event.target.value))}
      >
        {schema.default === undefined && <option value="">Choose…</option>}
        {schema.enum.map((each) => (
          <option key={String(each)}>{String(each)}</option>
        ))}
      </select>
    );
  if (schema.type === "integer" || schema.type === "number")
    return (
      <input
        {...common}
        className="field"
        type="number"
        min={schema.minimum}
        max={schema.maximum}
        step={schema.type === "integer" ? 1 : "any"}
        placeholder={placeholder}
        value={value === undefined ? "" : String(value)}
        onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))}
      />
    );
  if (schema.type === "array" || schema.type === "object")
    return <JsonField common={common} schema={schema} value={value} onChange={onChange} />;
  const widget = schema["x-form"]?.widget;
  if ((widget === "code" || widget === "textarea") && !schema.writeOnly)
    return (
      <textarea
        {...common}
        className={`field ${widget === "code" ? "font-mono text-xs" : ""}`}
        rows={6}
        spellCheck={widget === "textarea"}
        maxLength={schema.maxLength}
        placeholder={placeholder}
        value={value === undefined ? "" : String(value)}
        onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
      />
    );
  return (
    <input
      {...common}
      className="field"
      type={schema.writeOnly ? "password" : "text"}
      autoComplete="off"
      maxLength={schema.maxLength}
      placeholder={placeholder}
      value={value === undefined ? "" : String(value)}
      onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
    />
  );
}

/** Lists and objects are edited as JSON; what is not JSON yet is not sent. */
function JsonField(props: { common: Common; schema: Schema; value: unknown; onChange: (value: unknown) => void }) {
  const { common, schema, value, onChange } = props;
  const initial = value ?? schema.default;
  const [text, setText] = useState(initial === undefined ? "" : JSON.stringify(initial, null, 2));
  const [wrong, setWrong] = useState(false);
  return (
    <>
      <textarea
        {...common}
        aria-invalid={wrong || common["aria-invalid"]}
        className="field font-mono text-xs"
        rows={Math.min(10, text.split("\n").length + 1)}
        spellCheck={false}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          try {
            onChange(event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value));
            setWrong(false);
          } catch {
            setWrong(true);
          }
        }}
      />
      {wrong && <p className="mt-1 text-xs text-bad">This is not JSON yet; the last valid value is used.</p>}
    </>
  );
}

interface LabelledProps {
  id: string;
  label: string;
  required?: boolean;
  help?: string;
  error?: string;
  children: ReactNode;
}

export function Labelled({ id, label, required, help, error, children }: LabelledProps) {
  return (
    <div>
      <label htmlFor={id} className="mb-1 block font-medium">
        {label}
        {required && <span className="text-muted"> (required)</span>}
      </label>
      {children}
      <Help id={id} text={help} error={error} />
    </div>
  );
}

function Help({ id, text, error }: { id: string; text?: string; error?: string }) {
  return (
    <>
      {text && (
        <p id={`${id}-help`} className="mt-1 text-xs text-muted">
          {text}
        </p>
      )}
      {error && (
        <p id={`${id}-error`} className="mt-1 text-xs font-medium text-bad">
          {error}
        </p>
      )}
    </>
  );
}
