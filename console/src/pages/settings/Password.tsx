/** A new password for oneself. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { answer, api } from "../../api/client";
import { ownTokens } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { Labelled } from "../../parts/SchemaForm";
import { Button, Panel, ProblemBox } from "../../parts/ui";

export function Password() {
  const queries = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [isDone, setDone] = useState(false);

  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = event.currentTarget;
    const field = (name: string) => String(new FormData(form).get(name) ?? "");
    setBusy(true);
    setError(null);
    setDone(false);
    try {
      await answer(
        api.POST("/api/v1/whoami/password", {
          body: { current_password: field("current"), new_password: field("wanted") },
        }),
      );
      form.reset();
      setDone(true);
      announce("The password is changed");
      await queries.invalidateQueries(ownTokens);
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  return (
    <Panel title="Password">
      <form onSubmit={submit} className="space-y-4 p-4">
        <Labelled id="current" label="Current password">
          <input
            id="current"
            name="current"
            type="password"
            required
            className="field"
            autoComplete="current-password"
          />
        </Labelled>
        <Labelled id="wanted" label="New password" help="12 characters or more; four unrelated words are good.">
          <input
            id="wanted"
            name="wanted"
            type="password"
            required
            minLength={12}
            maxLength={200}
            className="field"
            autoComplete="new-password"
          />
        </Labelled>
        <p className="text-xs text-muted">
          A new password ends your other sessions and revokes all your personal tokens. Passkeys stay.
        </p>
        {error !== null && <ProblemBox error={error} />}
        {isDone && (
          <p role="status" className="rounded-md bg-good-soft p-3 text-good">
            The password is changed. This session stays.
          </p>
        )}
        <Button type="submit" disabled={busy}>
          {busy ? "Changing…" : "Change the password"}
        </Button>
      </form>
    </Panel>
  );
}
