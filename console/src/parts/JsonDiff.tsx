/** What a change changed: one row for each field that differs, before and after. */
type Data = Record<string, unknown> | null | undefined;

function shown(value: unknown): string {
  if (value === undefined || value === null) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function JsonDiff({ before, after }: { before: Data; after: Data }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])].sort();
  const changed = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  if (changed.length === 0) return <p className="mt-2 text-xs text-muted">No field differs.</p>;
  return (
    <div className="mt-2 max-w-2xl overflow-x-auto rounded-md border border-line">
      <table className="w-full text-left text-xs">
        <caption className="sr-only">What changed</caption>
        <thead className="border-b border-line text-muted">
          <tr>
            <th scope="col" className="px-2 py-1 font-medium">
              Field
            </th>
            <th scope="col" className="px-2 py-1 font-medium">
              Before
            </th>
            <th scope="col" className="px-2 py-1 font-medium">
              After
            </th>
          </tr>
        </thead>
        <tbody className="font-mono">
          {changed.map((name) => (
            <tr key={name}>
              <td className="px-2 py-1 align-top">{name}</td>
              <td className="bg-bad-soft px-2 py-1 align-top break-all">{shown(before?.[name])}</td>
              <td className="bg-good-soft px-2 py-1 align-top break-all">{shown(after?.[name])}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
