/** Requests over HTTPS, and which answers are the gateway's. Laws K7, K18: docs/spec/client.md. */

import { fault, LakeSyncError } from "./errors.js";
import { exact } from "./json.js";
import type { Request } from "./messages.js";

const JSON_TYPE = "application/json";

export interface Address {
  /** The address of the stack, with its stage if it has one. */
  readonly url: string;
  readonly gateway: string;
  readonly clientId: string;
  /** The token, or what gets one; asked again when the gateway refuses it. */
  readonly token: string | ((isRefused: boolean) => string | Promise<string>);
  readonly fetch?: typeof fetch;
}

export class Http {
  private token = "";

  constructor(private readonly address: Address) {}

  /** Send a request; throws what the gateway refused, or `UNREACHABLE`. */
  async send(request: Request, signal?: AbortSignal): Promise<unknown> {
    try {
      return await this.exchange(request, signal);
    } catch (error) {
      const isRefused = error instanceof LakeSyncError && error.code === "AUTH_ERROR";
      if (!isRefused || typeof this.address.token === "string") throw error;
      await this.bearer(true);
      return this.exchange(request, signal);
    }
  }

  /** The token; another one if this one was refused. */
  async bearer(isRefused = false): Promise<string> {
    if (isRefused || !this.token) {
      const { token } = this.address;
      const text = typeof token === "string" ? token : await token(isRefused);
      if (!/^[\x21-\x7e]+$/.test(text))
        throw fault("AUTH_ERROR", "the token cannot be sent in a header");
      this.token = text;
    }
    return this.token;
  }

  private async exchange(request: Request, signal?: AbortSignal): Promise<unknown> {
    const token = await this.bearer();
    const { url, gateway, clientId } = this.address;
    const [method, path, body] = routeOf(request, clientId);
    let answer: Response;
    let text: string;
    try {
      answer = await (this.address.fetch ?? fetch)(
        `${url.replace(/\/$/, "")}/sync/${encodeURIComponent(gateway)}/${path}`,
        {
          method,
          headers: {
            authorization: `Bearer ${token}`,
            accept: JSON_TYPE,
            ...(body !== null && { "content-type": JSON_TYPE }),
          },
          body,
          redirect: "manual", // its target would see the token
          // With it a browser asks before each request whether it may be sent. No answer to a POST is
          // taken from a cache.
          ...(body === null && { cache: "no-store" }),
          ...(signal && { signal }),
        },
      );
      text = await answer.text();
    } catch {
      throw fault("UNREACHABLE", "the gateway cannot be reached; what waits is sent later");
    }
    return read(answer, text);
  }
}

function routeOf(request: Request, clientId: string): [string, string, string | null] {
  if ("push" in request) return ["POST", "push", JSON.stringify(request.push)];
  if ("call" in request) return request.call;
  if ("schemas" in request) return ["GET", "schema", null];
  const pull = { clientId, removes: true, ownCursor: true, ...request.pull };
  return ["POST", "pull", JSON.stringify(pull)];
}

function read(answer: Response, text: string): unknown {
  let body: unknown;
  try {
    body = exact(text);
  } catch {
    throw foreign(answer.status);
  }
  if (typeof body !== "object" || body === null) throw foreign(answer.status);
  if (answer.ok) return body;
  const { error, code, requestId, field } = body as Record<string, unknown>;
  if (typeof error !== "string" || typeof code !== "string" || typeof requestId !== "string") {
    throw foreign(answer.status);
  }
  const wait = Number(answer.headers.get("retry-after"));
  const seconds = Number.isFinite(wait) && wait > 0 ? wait : 0;
  throw new LakeSyncError(code, error, typeof field === "string" ? field : null, seconds);
}

const foreign = (status: number): LakeSyncError =>
  fault(
    "NOT_THE_GATEWAY",
    `something else than the gateway answered (${status}): a login page, a proxy, another address`,
  );
