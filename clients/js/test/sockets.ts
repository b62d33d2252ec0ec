/** WebSockets whose other side is the test. */

export class FakeSocket {
  static all: FakeSocket[] = [];

  onopen: (() => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  readonly sent: string[] = [];
  isClosed = false;

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {
    FakeSocket.all.push(this);
  }

  static get last(): FakeSocket {
    return FakeSocket.all.at(-1)!;
  }

  static get open(): FakeSocket[] {
    return FakeSocket.all.filter((socket) => !socket.isClosed);
  }

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.isClosed = true;
  }

  /** Let the handshake succeed. */
  accept(): void {
    this.onopen?.();
  }

  /** Let it end, as the network or the gateway does. */
  drop(code = 1006): void {
    this.isClosed = true;
    this.onclose?.({ code });
  }

  receive(frame: unknown): void {
    this.onmessage?.({ data: typeof frame === "object" ? JSON.stringify(frame) : frame });
  }
}

export const WebSocketOf = FakeSocket as unknown as typeof WebSocket;
