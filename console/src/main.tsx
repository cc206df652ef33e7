import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { isProblem } from "./api/client";
import "./index.css";
import { router } from "./router";

/** A session that has ended leads to the sign-in, and from there back to the same page. */
function onError(error: unknown): void {
  if (!isProblem(error, 401) || router.state.location.pathname === "/sign-in") return;
  queries.clear();
  void router.navigate({ to: "/sign-in", search: { to: router.state.location.href } });
}

const queries = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({ onError }),
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      retry: (count, error) => count < 2 && (isProblem(error, 0) || isProblem(error, 503)),
    },
  },
});

const root = document.getElementById("root");
if (root)
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
