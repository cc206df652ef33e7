/** Theme, density and time zone of this browser; they are stored nowhere else. */
import { useState } from "react";
import { setTimeZone, type TimeZone, useTimeZone } from "../../parts/time";
import { Panel } from "../../parts/ui";
import { applyDensity, applyTheme, type Density, storedDensity, storedTheme, type Theme } from "../../theme";

export function Appearance() {
  const [theme, setTheme] = useState(storedTheme);
  const [density, setDensity] = useState(storedDensity);
  const zone = useTimeZone();
  return (
    <Panel title="Appearance">
      <div className="space-y-4 p-4">
        <Options<Theme>
          label="Theme"
          value={theme}
          options={{ system: "System", light: "Light", dark: "Dark" }}
          choose={(value) => {
            applyTheme(value);
            setTheme(value);
          }}
        />
        <Options<Density>
          label="Density"
          value={density}
          options={{ comfortable: "Comfortable", compact: "Compact" }}
          choose={(value) => {
            applyDensity(value);
            setDensity(value);
          }}
        />
        <Options<TimeZone> label="Times" value={zone} options={{ local: "Local", utc: "UTC" }} choose={setTimeZone} />
        <p className="text-xs text-muted">For this browser only.</p>
      </div>
    </Panel>
  );
}

interface OptionsProps<T extends string> {
  label: string;
  value: T;
  options: Record<T, string>;
  choose: (value: T) => void;
}

function Options<T extends string>({ label, value, options, choose }: OptionsProps<T>) {
  return (
    <fieldset>
      <legend className="mb-1 font-medium">{label}</legend>
      <div className="inline-flex overflow-hidden rounded-md border border-line">
        {(Object.keys(options) as T[]).map((each) => (
          <label
            key={each}
            className="cursor-pointer border-line px-3 py-1.5 not-first:border-l has-checked:bg-accent-soft has-checked:font-medium has-checked:text-accent has-focus-visible:outline-2 has-focus-visible:-outline-offset-2 has-focus-visible:outline-accent"
          >
            <input
              type="radio"
              name={label}
              className="sr-only"
              checked={each === value}
              onChange={() => choose(each)}
            />
            {options[each]}
          </label>
        ))}
      </div>
    </fieldset>
  );
}
