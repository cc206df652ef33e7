/** Whether a button can be used. The server decides; this only says its reason before one asks. */
interface Subject {
  status: string;
  allowed_verbs: string[];
  allowed_actions: string[];
}

/** Why a verb cannot be used now: its state does not allow it, or the caller lacks the action key. */
export function missing(subject: Subject, verb: string, action: string): string | undefined {
  if (!subject.allowed_actions.includes(action)) {
    return subject.allowed_verbs.includes(verb)
      ? `you need ${action}; an admin of the project can give it`
      : `it is ${subject.status}, or you do not have ${action}`;
  }
  if (!subject.allowed_verbs.includes(verb)) return `not while it is ${subject.status}`;
  return undefined;
}
