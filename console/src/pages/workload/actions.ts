/** The verbs that an app's manifest declares, as the console reads them. The console knows none of them by name. */
import type { Schemas } from "../../api/client";
import type { Schema } from "../../parts/SchemaForm";

export interface RowAction {
  action: string;
  /** Fields of the action's input, and the columns that fill them in. */
  input: Record<string, string>;
  /** The values of a column with which it can be used. */
  when?: Record<string, string[]>;
}

export interface ActionView {
  kind: "table";
  rows: string;
  columns: string[];
  row_actions?: RowAction[];
  create?: string[];
}

export interface AppAction {
  name: string;
  permission: string;
  title?: string;
  description?: string;
  target?: "instance" | "member";
  input_schema: Schema;
  output_schema?: Schema;
  timeout_seconds?: number;
  destructive?: boolean;
  read_only?: boolean;
  view?: ActionView;
}

export type Row = Record<string, unknown>;

export function actionsOf(detail: Schemas["CatalogVersionDetail"]): AppAction[] {
  return detail.actions as unknown as AppAction[];
}

export function titleOf(action: AppAction): string {
  return action.title ?? action.name;
}

/** The schema of one row of an action's table. */
export function rowSchema(action: AppAction): Schema | undefined {
  return action.output_schema?.properties?.[action.view?.rows ?? ""]?.items;
}

export function rowsOf(action: AppAction, output: Row | null | undefined): Row[] {
  const found = output?.[action.view?.rows ?? ""];
  return Array.isArray(found) ? (found as Row[]) : [];
}

export function isUsable(rowAction: RowAction, row: Row): boolean {
  return Object.entries(rowAction.when ?? {}).every(([column, values]) => values.includes(String(row[column])));
}

/** Why the caller cannot use the action: the key that they lack. An app's own key comes with the right to launch. */
export function lacking(me: Schemas["WhoAmI"] | undefined, projectId: string, action: AppAction): string | undefined {
  const held = [...(me?.project_actions[projectId] ?? []), ...(me?.tenant_actions ?? [])];
  const isApp = action.permission.startsWith("app.") && held.includes("instance.create");
  return held.includes(action.permission) || isApp
    ? undefined
    : `you need ${action.permission}; an admin of the project can give it`;
}
