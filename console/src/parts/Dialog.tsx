/** A dialog for an action: what happens, what is lost, the same as a command. The browser keeps the focus inside. */
import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import { Button, CommandLine, ProblemBox } from "./ui";

interface ActionDialogProps {
  title: string;
  confirm: string;
  danger?: boolean;
  command: string;
  children?: ReactNode;
  /** Does it; the key is made when the dialog opens, so that a second click is the same request. */
  act: (key: string) => Promise<unknown>;
  close: () => void;
  /** It stays open when it is done: the caller shows a result in it. */
  stays?: boolean;
  /** Nothing is left to cancel: it only shows a result. */
  isResult?: boolean;
}

export function ActionDialog({
  title,
  confirm,
  danger,
  command,
  children,
  act,
  close,
  stays,
  isResult,
}: ActionDialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const [key] = useState(() => crypto.randomUUID());
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);

  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => before?.focus();
  }, []);

  const submit = async () => {
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await act(key);
      if (stays) setBusy(false);
      else close();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };

  return (
    <dialog
      ref={dialog}
      aria-labelledby={heading}
      onClose={close}
      className="w-[min(32rem,calc(100vw-2rem))] rounded-lg border border-line bg-panel p-0 text-ink shadow-2xl"
    >
      <form
        method="dialog"
        className="space-y-4 p-5"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <h2 id={heading} className="text-base">
          {title}
        </h2>
        {children}
        {error !== null && <ProblemBox error={error} />}
        <details>
          <summary className="text-xs text-muted">The same from the command line</summary>
          <div className="mt-2">
            <CommandLine command={command} />
          </div>
        </details>
        <div className="flex justify-end gap-2">
          {!isResult && <Button onClick={close}>Cancel</Button>}
          <Button type="submit" look={danger ? "danger" : "primary"} disabled={busy}>
            {busy ? "Working…" : confirm}
          </Button>
        </div>
      </form>
    </dialog>
  );
}
