/** A read action that returns rows, as a table that stays current: its rows lead to other actions. */
import { useQuery } from "@tanstack/react-query";
import RefreshCw from "lucide-react/icons/refresh-cw";
import type { Instance } from "../../api/client";
import { readAction } from "../../api/queries/runtime";
import { type Column, DataTable } from "../../parts/DataTable";
import { Ago } from "../../parts/time";
import { Button, Empty } from "../../parts/ui";
import { type AppAction, isUsable, type Row, rowSchema, rowsOf, titleOf } from "./actions";

const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

interface ActionTableProps {
  instance: Instance;
  action: AppAction;
  others: AppAction[];
  reason: (action: AppAction) => string | undefined;
  run: (action: AppAction, input: Row) => void;
}

export function ActionTable({ instance, action, others, reason, run }: ActionTableProps) {
  const hindrance = reason(action);
  const read = useQuery(readAction(instance, action.name, hindrance === undefined));
  const view = action.view;
  const items = rowsOf(action, read.data?.output);
  const title = rowSchemaTitle(action);
  return (
    <DataTable
      title={title}
      label={title}
      query={{
        data: read.data && { items },
        error: read.data ? null : read.error,
        refetch: read.refetch,
      }}
      rowKey={(row) => JSON.stringify(row)}
      columns={columnsOf(action, others, reason, run)}
      aside={
        <div className="flex flex-wrap items-center gap-3">
          <span role="status" className={`text-xs ${read.error || hindrance ? "text-warn" : "text-muted"}`}>
            {hindrance && !read.data
              ? hindrance
              : read.dataUpdatedAt > 0 && (
                  <>
                    read <Ago at={new Date(read.dataUpdatedAt).toISOString()} />
                    {read.error && ", and not since"}
                  </>
                )}
          </span>
          <Button
            onClick={() => void read.refetch()}
            disabledReason={hindrance ?? (read.isFetching ? "it is being read" : undefined)}
          >
            <RefreshCw size={14} aria-hidden /> Read again
          </Button>
          {(view?.create ?? []).flatMap((name) => {
            const create = others.find((each) => each.name === name);
            return create
              ? [
                  <Button key={name} look="primary" onClick={() => run(create, {})} disabledReason={reason(create)}>
                    {titleOf(create)}
                  </Button>,
                ]
              : [];
          })}
        </div>
      }
      empty={<Empty title="There is nothing here now">{action.description}</Empty>}
    />
  );
}

function rowSchemaTitle(action: AppAction): string {
  return action.output_schema?.properties?.[action.view?.rows ?? ""]?.title ?? titleOf(action);
}

function columnsOf(
  action: AppAction,
  others: AppAction[],
  reason: ActionTableProps["reason"],
  run: ActionTableProps["run"],
): Column<Row>[] {
  const fields = rowSchema(action)?.properties ?? {};
  const columns = (action.view?.columns ?? []).map(
    (name, index): Column<Row> => ({
      head: fields[name]?.title ?? name,
      isNumber: fields[name]?.type === "integer" || fields[name]?.type === "number",
      cell: (row) => <Value value={row[name]} isStrong={index === 0} />,
    }),
  );
  const rowActions = action.view?.row_actions ?? [];
  if (rowActions.length === 0) return columns;
  const buttons: Column<Row> = {
    head: "Actions",
    cell: (row) => (
      <div className="flex flex-wrap gap-2">
        {rowActions.flatMap((each) => {
          const other = others.find((one) => one.name === each.action);
          if (!other || !isUsable(each, row)) return [];
          const input = Object.fromEntries(Object.entries(each.input).map(([field, column]) => [field, row[column]]));
          return [
            <Button
              key={each.action}
              look={other.destructive ? "danger" : "plain"}
              onClick={() => run(other, input)}
              disabledReason={reason(other)}
            >
              {titleOf(other)}
            </Button>,
          ];
        })}
      </div>
    ),
  };
  return [...columns, buttons];
}

function Value({ value, isStrong }: { value: unknown; isStrong: boolean }) {
  if (value === undefined || value === null || value === "") return <span className="text-muted">–</span>;
  if (typeof value === "string" && MOMENT.test(value)) return <Ago at={value} />;
  const text = Array.isArray(value)
    ? value.join(", ")
    : typeof value === "object"
      ? JSON.stringify(value)
      : String(value);
  return <span className={`break-words ${isStrong ? "font-medium" : ""}`}>{text}</span>;
}
