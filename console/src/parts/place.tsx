/** The place that a page shows: the platform, the tenant, or a project. It stands in the URL as `at`. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import type { Place } from "../api/place";
import { projects, whoAmI } from "../api/queries/identity";
import { reference } from "../api/queries/reference";

interface Choice {
  word: string;
  label: string;
  place: Place;
}

/** The places where the caller has any right, the widest first. */
function choices(me: Schemas["WhoAmI"] | undefined, known: Schemas["ProjectView"][]): Choice[] {
  if (!me) return [];
  const found: Choice[] = [];
  if (me.platform_actions.length > 0)
    found.push({ word: "platform", label: "Platform", place: { scope: "platform", id: "" } });
  if (me.tenant_id && me.tenant_actions.length > 0)
    found.push({ word: "tenant", label: "Whole tenant", place: { scope: "tenant", id: me.tenant_id } });
  for (const { id, slug } of known) found.push({ word: id, label: `Project ${slug}`, place: { scope: "project", id } });
  return found;
}

export function usePlace(named: string | undefined) {
  const me = useQuery(whoAmI).data;
  const known = useQuery(projects).data;
  const options = choices(me, known?.items ?? []);
  const current = options.find((each) => each.word === named) ?? (known ? options[0] : undefined);
  return { place: current?.place, word: current?.word, options, isEmpty: known !== undefined && !current };
}

interface PlacePickerProps {
  options: Choice[];
  value: string | undefined;
  onChange: (word: string) => void;
}

export function PlacePicker({ options, value, onChange }: PlacePickerProps) {
  if (options.length < 2) return null;
  return (
    <select
      aria-label="Place"
      className="field w-auto max-w-56"
      value={value ?? ""}
      onChange={(event) => onChange(event.target.value)}
    >
      {options.map((each) => (
        <option key={each.word} value={each.word}>
          {each.label}
        </option>
      ))}
    </select>
  );
}

/** Why the caller cannot do what needs this key in this place, and which roles have it; undefined if they can. */
export function useLack(place: Place | undefined): (...keys: string[]) => string | undefined {
  const me = useQuery(whoAmI).data;
  const { data } = useQuery(reference);
  return (...keys) => {
    if (!me || !place) return "it is not loaded yet";
    const held =
      place.scope === "platform"
        ? me.platform_actions
        : [...me.tenant_actions, ...(place.scope === "project" ? (me.project_actions[place.id] ?? []) : [])];
    if (keys.some((key) => held.includes(key))) return undefined;
    const roles = data?.actions.find((each) => each.key === keys[0])?.roles ?? [];
    const who = roles.map((role) => role.replaceAll("_", " ")).join(", ");
    return `you need ${keys[0]}${who && `; who has it: ${who}`}`;
  };
}
