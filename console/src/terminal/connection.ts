/**
 * One terminal over WebSocket: the protocol of docs/reach.md, and what happens when the connection breaks.
 *
 * A break leads to five more attempts, after 0.5 to 8 seconds, each from where the output stopped; then a person
 * decides. An end that the server explains is final, except when another process of the platform holds the terminal.
 */

export interface Opened {
  id: string;
  owner: string;
  argv: string[];
  user: string;
  recorded: boolean;
  offset: number;
}

export interface Refused {
  code: string;
  detail: string;
  correlationId: string;
  /** Which of the ends of a terminal it is, where there are several of one code. */
  terminal: string;
}

export interface Listener {
  opening(): void;
  /** `lost` is how much output came while nobody looked and is no longer kept. */
  opened(found: Opened, lost: number): void;
  output(data: Uint8Array, shown: () => void): void;
  exited(code: string): void;
  refused(why: Refused): void;
  retrying(attempt: number, seconds: number): void;
  gaveUp(): void;
}

export const BACK_OFF_SECONDS = [0.5, 1, 2, 4, 8];
const INPUT_BYTES = 8_192;
const [OUTPUT, ERRORS, EXIT] = ["d", "w", "x"].map((letter) => letter.charCodeAt(0));

function message(letter: string, data: Uint8Array): ArrayBuffer {
  const made = new Uint8Array(data.length + 1);
  made[0] = letter.charCodeAt(0);
  made.set(data, 1);
  return made.buffer;
}

export class Connection {
  private socket: WebSocket | null = null;
  private offset = 0;
  private attempt = 0;
  private timer = 0;
  private isOpen = false;
  private isFinal = false;
  private size = { columns: 80, rows: 24 };
  private readonly encoder = new TextEncoder();

  constructor(
    private readonly address: string,
    private ticket: string | null,
    private readonly listener: Listener,
  ) {}

  connect(): void {
    window.clearTimeout(this.timer);
    const socket = new WebSocket(this.address);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.isOpen = false;
    socket.onopen = () => {
      const first = this.ticket === null ? { after: this.offset } : { ticket: this.ticket, after: this.offset };
      socket.send(JSON.stringify(first));
    };
    socket.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
      if (typeof event.data === "string") this.said(JSON.parse(event.data));
      else this.received(new Uint8Array(event.data));
    };
    socket.onclose = () => {
      if (this.socket === socket && !this.isFinal) this.retry();
    };
  }

  /** Begin again after the attempts are used up. */
  again(): void {
    this.attempt = 0;
    this.isFinal = false;
    this.connect();
  }

  close(): void {
    this.isFinal = true;
    window.clearTimeout(this.timer);
    this.socket?.close();
  }

  input(text: string): void {
    this.bytes(this.encoder.encode(text));
  }

  bytes(data: Uint8Array): void {
    for (let begin = 0; begin < data.length; begin += INPUT_BYTES)
      this.send("d", data.subarray(begin, begin + INPUT_BYTES));
  }

  resize(columns: number, rows: number): void {
    this.size = { columns, rows };
    this.send("r", this.encoder.encode(JSON.stringify(this.size)));
  }

  private send(letter: string, data: Uint8Array): void {
    if (this.isOpen && this.socket?.readyState === WebSocket.OPEN) this.socket.send(message(letter, data));
  }

  private said(what: Record<string, unknown>): void {
    if (what.kind === "opening") this.listener.opening();
    else if (what.kind === "open") {
      const opened = what as unknown as Opened;
      const lost = Math.max(0, opened.offset - this.offset);
      this.offset = opened.offset;
      this.ticket = null; // it was used; from here on the session of the browser leads to the terminal
      this.attempt = 0;
      this.isOpen = true;
      this.listener.opened(opened, lost);
      this.resize(this.size.columns, this.size.rows);
    } else if (what.kind === "closed") this.closed(what);
  }

  private closed(what: Record<string, unknown>): void {
    const problem = (what.problem ?? {}) as Record<string, unknown>;
    const details = (problem.details ?? {}) as Record<string, unknown>;
    const why = {
      code: String(problem.code ?? "unknown"),
      detail: String(what.reason ?? ""),
      correlationId: String(problem.correlation_id ?? ""),
      terminal: String(details.terminal ?? ""),
    };
    if (why.terminal === "elsewhere") return; // the close follows, and the next attempt may reach the right process
    this.isFinal = true;
    this.listener.refused(why);
  }

  private received(data: Uint8Array): void {
    if (data[0] === EXIT) {
      this.isFinal = true;
      this.listener.exited(new TextDecoder().decode(data.subarray(1)));
      return;
    }
    if (data[0] !== OUTPUT && data[0] !== ERRORS) return;
    const output = data.subarray(1);
    this.offset += output.length;
    this.listener.output(output, () => {
      const count = new Uint8Array(4);
      new DataView(count.buffer).setUint32(0, output.length);
      this.send("a", count);
    });
  }

  private retry(): void {
    this.isOpen = false;
    const seconds = BACK_OFF_SECONDS[this.attempt];
    if (seconds === undefined) {
      this.isFinal = true;
      this.listener.gaveUp();
      return;
    }
    this.attempt += 1;
    this.listener.retrying(this.attempt, seconds);
    this.timer = window.setTimeout(() => this.connect(), seconds * 1_000);
  }
}
