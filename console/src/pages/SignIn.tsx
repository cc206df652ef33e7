/** Signing in with a password; afterwards back to where one was. */
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useState } from "react";
import { answer, api, isProblem, type Problem } from "../api/client";
import { Mark } from "../parts/Mark";
import { Labelled } from "../parts/SchemaForm";
import { useTitle } from "../parts/title";
import { Button, ProblemBox } from "../parts/ui";

export function SignIn() {
  useTitle("Sign in");
  const { to } = useSearch({ from: "/sign-in" });
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const seconds = useCountdown(error);

  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const tenant = String(form.get("tenant") ?? "").trim();
    setBusy(true);
    setError(null);
    try {
      await answer(
        api.POST("/api/v1/browser-session", {
          body: {
            email: String(form.get("email")).trim(),
            password: String(form.get("password")),
            ...(tenant ? { tenant } : {}),
          },
        }),
      );
      queries.clear();
      await navigate({ to: to ?? "/" });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  return (
    <main className="grid min-h-dvh place-items-center px-4 py-10">
      <div className="w-full max-w-sm">
        <div className="mb-6 flex items-center gap-3">
          <Mark size={36} />
          <div>
            <h1>Sign in to Mooring</h1>
            <p className="text-muted">Apps on your GPU cloud</p>
          </div>
        </div>
        <form onSubmit={submit} className="space-y-4 rounded-lg border border-line bg-panel p-5">
          <Labelled id="tenant" label="Tenant" help="Leave it empty to sign in as staff of the platform.">
            <input id="tenant" name="tenant" className="field" autoComplete="organization" autoCapitalize="none" />
          </Labelled>
          <Labelled id="email" label="E-mail">
            <input id="email" name="email" type="email" required className="field" autoComplete="username" />
          </Labelled>
          <Labelled id="password" label="Password">
            <input
              id="password"
              name="password"
              type="password"
              required
              className="field"
              autoComplete="current-password"
            />
          </Labelled>
          {seconds > 0 ? (
            <p role="alert" className="rounded-md bg-warn-soft p-3 text-warn">
              Too many attempts. You can try again in {seconds} s.
            </p>
          ) : (
            error !== null && !isProblem(error, 429) && <ProblemBox error={error} />
          )}
          <Button type="submit" look="primary" className="w-full" disabled={busy || seconds > 0}>
            {busy ? "Signing in…" : "Sign in"}
          </Button>
        </form>
        <p className="mt-4 text-xs text-muted">
          With a one-time code, set your password first: <code className="font-mono">mooring login</code>. Started with{" "}
          <code className="font-mono">make up</code>? <code className="font-mono">mooring try console</code> shows your
          sign-in.
        </p>
      </div>
    </main>
  );
}

/** The seconds until the next attempt is allowed. */
function useCountdown(error: unknown): number {
  const [until, setUntil] = useState(0);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isProblem(error, 429)) return;
    const seconds = Number((error as Problem).details.retry_after_seconds ?? 5);
    setUntil(Date.now() + seconds * 1_000);
    setNow(Date.now());
    const timer = window.setInterval(() => setNow(Date.now()), 500);
    return () => window.clearInterval(timer);
  }, [error]);
  return isProblem(error, 429) ? Math.max(0, Math.ceil((until - now) / 1_000)) : 0;
}
