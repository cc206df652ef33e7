import CircleCheck from "lucide-react/icons/circle-check";
import CircleDashed from "lucide-react/icons/circle-dashed";
import Lock from "lucide-react/icons/lock";
import type { Statement } from "../../api/queries/money";

const LOOKS = {
  open: { icon: CircleDashed, text: "open: a preview", look: "text-muted" },
  closing: { icon: Lock, text: "closing: frozen", look: "text-busy" },
  closed: { icon: CircleCheck, text: "closed", look: "text-good" },
};

export function StatementBadge({ statement }: { statement: Statement }) {
  const { icon: Icon, text, look } = LOOKS[statement.status];
  return (
    <span className={`inline-flex items-center gap-1.5 whitespace-nowrap ${look}`}>
      <Icon size={15} aria-hidden /> {text}
    </span>
  );
}
