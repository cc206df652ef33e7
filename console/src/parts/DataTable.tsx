/**
 * A list as a table, and as cards on a narrow screen. The server filters, sorts and pages; the table only shows.
 * `j` and `k` move between rows, Enter follows the first link of a row.
 */
import type { KeyboardEvent, ReactNode } from "react";
import { Button, Panel, ProblemBox, Skeleton } from "./ui";

export interface Column<Row> {
  head: string;
  cell: (row: Row) => ReactNode;
  /** Numbers stand right, with figures of one width. */
  isNumber?: boolean;
  /** On a narrow screen: the whole first line, or not at all. */
  narrow?: "line" | "hidden";
}

interface DataTableProps<Row> {
  /** What the rows are, for screen readers. */
  label: string;
  columns: Column<Row>[];
  query: { data?: { items: Row[]; next_cursor?: string | null }; error: unknown; refetch?: () => unknown };
  rowKey: (row: Row) => string;
  /** The heading below which a row stands; without it the rows stand as the server sorts them. */
  groupOf?: ((row: Row) => string) | undefined;
  /** Shown when there is no row: what this list is, and the one next step. */
  empty: ReactNode;
  title?: string;
  aside?: ReactNode;
  pages?: CursorPages;
}

export interface CursorPages {
  cursor: string | undefined;
  go: (cursor: string | undefined) => void;
}

export function DataTable<Row>({
  label,
  columns,
  query,
  rowKey,
  groupOf,
  empty,
  title,
  aside,
  pages,
}: DataTableProps<Row>) {
  const next = query.data?.next_cursor;
  return (
    <>
      <Panel title={title} aside={aside}>
        {query.error ? (
          <ProblemBox error={query.error} retry={query.refetch && (() => void query.refetch?.())} />
        ) : !query.data ? (
          <Skeleton rows={8} />
        ) : query.data.items.length === 0 ? (
          empty
        ) : (
          <Rows label={label} columns={columns} rows={query.data.items} rowKey={rowKey} groupOf={groupOf} />
        )}
      </Panel>
      {pages && (pages.cursor || next) && (
        <nav aria-label="Pages of the list" className="mt-3 flex justify-end gap-2">
          {pages.cursor && <Button onClick={() => pages.go(undefined)}>First page</Button>}
          {next && <Button onClick={() => pages.go(next)}>Next page</Button>}
        </nav>
      )}
    </>
  );
}

interface RowsProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  groupOf: ((row: Row) => string) | undefined;
}

function Rows<Row>({ label, columns, rows, rowKey, groupOf }: RowsProps<Row>) {
  const groups = groupOf ? [...new Set(rows.map(groupOf))].sort() : [""];
  const cell = ({ isNumber, narrow }: Column<Row>) =>
    [
      "align-top md:px-4 md:py-2.5",
      isNumber ? "tabular-nums md:text-right" : "",
      narrow === "line" ? "max-md:w-full" : narrow === "hidden" ? "max-md:hidden" : "",
    ].join(" ");
  return (
    <div className="overflow-x-auto">
      <table className="w-full" data-list onKeyDown={moveInList}>
        <caption className="sr-only">{label}</caption>
        <thead className="border-b border-line max-md:sr-only">
          <tr>
            {columns.map((each) => (
              <th
                key={each.head}
                scope="col"
                className={`px-4 py-2 text-xs font-medium text-muted ${each.isNumber ? "text-right" : "text-left"}`}
              >
                {each.head}
              </th>
            ))}
          </tr>
        </thead>
        {groups.map((group) => (
          <tbody key={group} className="divide-y divide-line border-b border-line last:border-b-0">
            {groupOf && (
              <tr className="bg-sunken">
                <th colSpan={columns.length} scope="rowgroup" className="px-4 py-1.5 text-left text-xs font-medium">
                  {group}
                </th>
              </tr>
            )}
            {rows
              .filter((row) => !groupOf || groupOf(row) === group)
              .map((row) => (
                <tr
                  key={rowKey(row)}
                  className="focus-within:bg-sunken hover:bg-sunken max-md:flex max-md:flex-wrap max-md:items-center max-md:gap-x-3 max-md:gap-y-1 max-md:px-4 max-md:py-3"
                >
                  {columns.map((each) => (
                    <td key={each.head} className={cell(each)}>
                      {each.cell(row)}
                    </td>
                  ))}
                </tr>
              ))}
          </tbody>
        ))}
      </table>
    </div>
  );
}

const CONTROLS = "a[href], button";

/** Puts the focus on the first control of the row above or below. */
export function moveInList(event: KeyboardEvent<HTMLElement>): void {
  const step = event.key === "j" ? 1 : event.key === "k" ? -1 : 0;
  if (step === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = (event.target as HTMLElement).closest("tr");
  const rows = [...event.currentTarget.querySelectorAll<HTMLElement>("tbody tr")].filter((each) =>
    each.querySelector(CONTROLS),
  );
  const found = rows[rows.indexOf(row as HTMLElement) + step]?.querySelector<HTMLElement>(CONTROLS);
  if (!found) return;
  event.preventDefault();
  found.focus();
}

/** Puts the focus on the first row of the page's first list; for `j` while nothing is chosen. */
export function enterList(): void {
  document.querySelector<HTMLElement>(`[data-list] tbody tr :is(${CONTROLS})`)?.focus();
}
