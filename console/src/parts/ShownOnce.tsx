/** A secret right after it was made. It is in the memory of this page only, and gone when the dialog closes. */
import { type ReactNode, useEffect, useId, useRef } from "react";
import { Button, CopyButton } from "./ui";

interface ShownOnceProps {
  title: string;
  secret: string;
  label: string;
  children?: ReactNode;
  close: () => void;
}

export function ShownOnce({ title, secret, label, children, close }: ShownOnceProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={heading}
      onCancel={(event) => event.preventDefault()}
      onClose={close}
      className="w-[min(34rem,calc(100vw-2rem))] space-y-4 rounded-lg border border-line bg-panel p-5 text-ink shadow-2xl"
    >
      <h2 id={heading} className="text-base">
        {title}
      </h2>
      <p className="rounded-md bg-warn-soft p-3 text-warn">Save it now; it will not be shown again.</p>
      <div className="flex items-start gap-1 rounded-md bg-sunken py-1 pr-1 pl-3">
        <output aria-label={label} className="min-w-0 flex-1 py-1 font-mono text-xs break-all">
          {secret}
        </output>
        <CopyButton text={secret} label={`Copy: ${label}`} />
      </div>
      {children}
      <form method="dialog" className="flex justify-end">
        <Button type="submit" look="primary">
          I saved it
        </Button>
      </form>
    </dialog>
  );
}
