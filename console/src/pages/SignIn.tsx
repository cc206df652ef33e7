/** The ways in: password, one-time code, passkey, the tenant's identity providers; afterwards back to where one was. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import Fingerprint from "lucide-react/icons/fingerprint-pattern";
import { type FormEvent, useEffect, useState } from "react";
import { answer, api, isProblem, Problem } from "../api/client";
import { signInMethods } from "../api/queries/identity";
import { Mark } from "../parts/Mark";
import { isCancelled, passkeyHindrance, signInWithPasskey } from "../parts/passkeys";
import { Labelled } from "../parts/SchemaForm";
import { useTitle } from "../parts/title";
import { Button, ProblemBox } from "../parts/ui";

const TENANT = "mooring-tenant";
const SLUG = /^[a-z][a-z0-9-]{1,38}[a-z0-9]$/;
const TYPING_MS = 300;

/** What a provider's answer can fail for, by the reason that the server puts into the address. Never its own text. */
const REASONS: Record<string, string> = {
  email_domain: "Your address at the provider is in no domain that may sign in here. Ask the tenant's admin.",
  email_missing: "The provider vouches for no verified e-mail address of yours. Verify your address there.",
  email_taken:
    "A user with your address exists already. Sign in as before, and ask the tenant's admin to link the two.",
  flow_over: "This sign-in took too long, or it was used already. Begin again.",
  flow_unknown: "This browser did not begin this sign-in, or it keeps no cookies. Begin again here.",
  id_token_refused: "What the provider sent could not be proven. If it happens again, tell the tenant's admin.",
  provider_answer_invalid: "The provider answered in a way that cannot be understood. Tell the tenant's admin.",
  provider_disabled: "This provider is disabled. Use another way to sign in.",
  provider_refused: "The provider did not sign you in.",
  provider_unreachable: "The provider does not answer right now. Try again, or use another way to sign in.",
  rate_limited: "Too many attempts. Wait a minute, then try again.",
  caller_address_denied: "The tenant does not allow sign-ins from your network.",
  user_disabled: "Your user is disabled. Ask the tenant's admin.",
  user_unknown:
    "You are not a user here yet, and the provider may not add you. Ask the tenant's admin for an invitation.",
};

const NO_COOKIE = new Problem(
  0,
  "no_cookie",
  "The browser kept no cookie",
  "You are signed in, but the browser did not store the session.",
  "Allow cookies for this site. Over plain HTTP browsers store it only for localhost and 127.0.0.1.",
  "",
  {},
);

export function SignIn() {
  useTitle("Sign in");
  const search = useSearch({ from: "/sign-in" });
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [tenant, setTenant] = useState(() => localStorage.getItem(TENANT) ?? "");
  const [withCode, setWithCode] = useState(false);
  const [busy, setBusy] = useState(false);
  const [begun] = useState(() => fromProvider(search.problem, search.correlation));
  const [error, setError] = useState<unknown>(begun);
  const seconds = useCountdown(error);
  const methods = useQuery(signInMethods(useSettled(tenant.trim()))).data;
  const hindrance = passkeyHindrance();

  /** Runs one way in; the session's cookie must be there afterwards. */
  const enter = async (way: () => Promise<unknown>) => {
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await way();
      await answer(api.GET("/api/v1/whoami")).catch((failure) => {
        throw isProblem(failure, 401) ? NO_COOKIE : failure;
      });
      queries.clear();
      await navigate({ to: search.to ?? "/" });
    } catch (failure) {
      setError(isCancelled(failure) ? null : failure);
    } finally {
      setBusy(false);
    }
  };

  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const field = (name: string) => String(form.get(name) ?? "");
    const slug = field("tenant").trim();
    const proof = withCode
      ? { one_time_code: field("code").trim(), new_password: field("new_password") }
      : { password: field("password") };
    void enter(async () => {
      await answer(
        api.POST("/api/v1/browser-session", {
          body: { email: field("email").trim(), ...proof, ...(slug ? { tenant: slug } : {}) },
        }),
      );
      localStorage.setItem(TENANT, slug);
    });
  };

  const goToProvider = async (id: string) => {
    setError(null);
    try {
      const begun = await answer(
        api.POST("/api/v1/sign-in/providers", { body: { identity_provider_id: id, to: search.to ?? "/" } }),
      );
      localStorage.setItem(TENANT, tenant.trim());
      window.location.assign(begun.authorization_url);
    } catch (failure) {
      setError(failure);
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
        <div className="space-y-4 rounded-lg border border-line bg-panel p-5">
          {error !== null && error === begun && <ProblemBox error={error} />}
          <form onSubmit={submit} className="space-y-4">
            <Labelled id="tenant" label="Tenant" help="Leave it empty to sign in as staff of the platform.">
              <input
                id="tenant"
                name="tenant"
                className="field"
                autoComplete="organization"
                autoCapitalize="none"
                value={tenant}
                onChange={(event) => setTenant(event.target.value)}
              />
            </Labelled>
            {methods?.identity_providers.map((each) => (
              <Button key={each.id} className="w-full" onClick={() => void goToProvider(each.id)}>
                Continue with {each.name}
              </Button>
            ))}
            {methods && methods.identity_providers.length > 0 && <Or />}
            <Labelled id="email" label="E-mail">
              <input id="email" name="email" type="email" required className="field" autoComplete="username" />
            </Labelled>
            {withCode ? <CodeFields /> : <PasswordField />}
            {seconds > 0 ? (
              <p role="alert" className="rounded-md bg-warn-soft p-3 text-warn">
                Too many attempts. You can try again in {seconds} s.
              </p>
            ) : (
              error !== null && error !== begun && !isProblem(error, 429) && <ProblemBox error={error} />
            )}
            <Button type="submit" look="primary" className="w-full" disabled={busy || seconds > 0}>
              {busy ? "Signing in…" : withCode ? "Set the password and sign in" : "Sign in"}
            </Button>
          </form>
          <Or />
          <Button
            className="w-full"
            disabledReason={hindrance}
            disabled={busy}
            onClick={() => void enter(signInWithPasskey)}
          >
            <Fingerprint size={16} aria-hidden />
            Use a passkey
          </Button>
          {hindrance && <p className="text-xs text-muted">{hindrance}</p>}
        </div>
        <p className="mt-4 text-xs text-muted">
          <button type="button" className="link" onClick={() => setWithCode(!withCode)}>
            {withCode ? "Sign in with a password" : "Use a one-time code"}
          </button>
          {withCode
            ? " instead."
            : " that an admin gave you, for the first time or after a reset. Forgot the password? An admin gives you a new code."}{" "}
          Started with <code className="font-mono">make up</code>?{" "}
          <code className="font-mono">mooring try console</code> shows your sign-in.
        </p>
      </div>
    </main>
  );
}

function PasswordField() {
  return (
    <Labelled id="password" label="Password">
      <input id="password" name="password" type="password" required className="field" autoComplete="current-password" />
    </Labelled>
  );
}

function CodeFields() {
  return (
    <>
      <Labelled id="code" label="One-time code">
        <input
          id="code"
          name="code"
          required
          className="field font-mono"
          autoComplete="one-time-code"
          maxLength={100}
        />
      </Labelled>
      <Labelled id="new_password" label="New password" help="12 characters or more; four unrelated words are good.">
        <input
          id="new_password"
          name="new_password"
          type="password"
          required
          minLength={12}
          maxLength={200}
          className="field"
          autoComplete="new-password"
        />
      </Labelled>
    </>
  );
}

function Or() {
  return (
    <p className="flex items-center gap-3 text-xs text-muted before:h-px before:flex-1 before:bg-line after:h-px after:flex-1 after:bg-line">
      or
    </p>
  );
}

/** What went wrong at a provider, as the address says it. */
function fromProvider(reason: string | undefined, correlation: string | undefined): Problem | null {
  if (!reason) return null;
  const detail = REASONS[reason] ?? "The sign-in at the provider did not succeed.";
  return new Problem(401, reason, "You are not signed in", detail, "", correlation ?? "", {});
}

/** The slug when the typing pauses; empty while it is none. */
function useSettled(slug: string): string {
  const [settled, setSettled] = useState(slug);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(SLUG.test(slug) ? slug : ""), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [slug]);
  return SLUG.test(settled) ? settled : "";
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
