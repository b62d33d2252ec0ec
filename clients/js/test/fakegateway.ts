/** A gateway of a few lines: a log of what was pushed, without rules, refusals or restores. */

type Fields = Record<string, any>;

export class Gateway {
  /** What was accepted, in order; each with its commit. */
  readonly log: Fields[] = [];
  pushes = 0;
  /** Is awaited before an answer leaves. */
  onRequest: (path: string) => Promise<void> | void = () => undefined;

  readonly fetch = async (url: string, init?: RequestInit): Promise<Response> => {
    const path = url.slice(url.lastIndexOf("/") + 1);
    await this.onRequest(path);
    const body = init?.body ? JSON.parse(init.body as string) : {};
    const answer =
      path === "push" ? this.push(body) : path === "pull" ? this.pull(body) : { tables: [] };
    return new Response(JSON.stringify(answer), {
      headers: { "content-type": "application/json" },
    });
  };

  private get cursor(): string {
    return String(this.log.length);
  }

  private push({ deltas }: Fields): Fields {
    this.pushes += 1;
    const results: Fields[] = [];
    deltas.forEach((delta: Fields, index: number) => {
      const { deltaId } = delta;
      if (this.log.some((other) => other.deltaId === deltaId)) {
        results.push({ index, deltaId, outcome: "duplicate" });
      } else this.log.push(delta);
    });
    const serverTimeMs = Date.now();
    return { serverHlc: this.cursor, accepted: deltas.length, results, serverTimeMs, epoch: "g.1" };
  }

  private pull({ since, limit }: { since: string; limit: number }): Fields {
    const from = Number(since);
    const deltas = this.log.slice(from, from + limit);
    const serverHlc = String(from + deltas.length);
    const hasMore = from + deltas.length < this.log.length;
    return { deltas, serverHlc, hasMore, epoch: "g.1", scope: "*" };
  }
}
