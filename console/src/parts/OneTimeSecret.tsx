/** A secret that is shown once: a token, or the code of an invitation. */
import { type ReactNode, useEffect, useId, useRef } from "react";
import { Button, CopyButton } from "./ui";

interface OneTimeSecretProps {
  title: string;
  secret: string;
  children: ReactNode;
  close: () => void;
}

export function OneTimeSecret({ title, secret, children, close }: OneTimeSecretProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={heading}
      onClose={close}
      className="w-[min(32rem,calc(100vw-2rem))] rounded-lg border border-line bg-panel p-0 text-ink shadow-2xl"
    >
      <div className="space-y-4 p-5">
        <h2 id={heading} className="text-base">
          {title}
        </h2>
        <div className="flex items-center gap-1 rounded-md border border-warn/40 bg-warn-soft py-1 pr-1 pl-3">
          <code className="min-w-0 flex-1 font-mono text-sm break-all" data-secret>
            {secret}
          </code>
          <CopyButton text={secret} label="Copy the secret" />
        </div>
        <div className="text-muted">{children}</div>
        <div className="flex justify-end">
          <Button look="primary" onClick={close}>
            I have copied it
          </Button>
        </div>
      </div>
    </dialog>
  );
}
