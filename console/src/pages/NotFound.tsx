import { Link } from "@tanstack/react-router";
import { useTitle } from "../parts/title";
import { Empty, ProblemBox } from "../parts/ui";

export function NotFound() {
  useTitle("Not found");
  return (
    <main className="grid min-h-[60dvh] place-items-center">
      <NotFoundBody />
    </main>
  );
}

/** The same for an id that does not exist and for one of another tenant: the server does not say which. */
export function NotFoundBody({ noun = "page" }: { noun?: string }) {
  return (
    <Empty title={`There is no such ${noun}, or you may not see it`}>
      <p>Check the address, and that you are signed in to the right tenant.</p>
      <p className="mt-3">
        <Link to="/workloads" className="link">
          See the workloads
        </Link>
      </p>
    </Empty>
  );
}

export function Crashed({ error }: { error: unknown }) {
  return (
    <main className="mx-auto max-w-xl p-8">
      <ProblemBox error={error} retry={() => location.reload()} />
    </main>
  );
}
