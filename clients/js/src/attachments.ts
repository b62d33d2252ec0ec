/**
 * Attachments: files beside the rows, added at any time, uploaded and fetched part by part.
 *
 * A row has a file's *reference*, a text that names its bytes. The parts that the gateway says are
 * missing are sent, and no record of sent ones is kept here: so an upload that is interrupted anywhere
 * goes on with the first part that has not arrived. What is fetched is given only once all of it is
 * what the reference names. Laws G1-G8: docs/spec/attachments.md.
 */

import { Background, hex, randomHex } from "./background.js";
import { sha256 } from "./bytes.js";
import { attempt, type Client, type Result } from "./client.js";
import { fault, LakeSyncError } from "./errors.js";
import { Side } from "./side.js";

/** A file, by its reference. */
export interface Attachment {
  readonly key: string;
  readonly digest: string;
  readonly sizeBytes: number;
  readonly mediaType: string;
}

/** A file whose bytes are on this device. */
export interface AttachmentEntry {
  readonly reference: string;
  readonly status:
    /** It is uploaded when there is a network. */
    | "waiting"
    /** The gateway does not take it. */
    | "refused"
    /** The gateway has it; its bytes are here too, and may be evicted. */
    | "kept";
  /** Why the gateway refuses it; empty if it does not. */
  readonly code: string;
  readonly reason: string;
}

interface Stored extends AttachmentEntry {
  /** The digests of its parts; none of one that was fetched. */
  readonly parts: readonly string[];
  /** What the gateway knows its upload by; empty if that is not begun. */
  readonly upload: string;
  readonly usedMs: number;
}

/** A request that the gateway has signed. */
interface Signed {
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly part?: number;
}

const PART_BYTES = 16_777_216;
const ATTACHMENT_BYTES_MAX = 320 * PART_BYTES;
const REFERENCE =
  /^attachment:([0-9a-f]{32}):([0-9a-f]{64}):(0|[1-9][0-9]{0,9}):([a-z0-9][a-z0-9!#$&^_.+-]{0,62}\/[a-z0-9][a-z0-9!#$&^_.+-]{0,62})$/;
const REFERENCE_CHARS_MAX = 256;
/** How often one upload asks what is missing: more often than a file has parts. */
const ROUNDS_MAX = 1_000;
/** An upload in another tab may take this long, before this one goes on with it. */
const OTHERS_MS_MAX = 300_000;

/** The file that a value refers to; null if it is no reference. */
export function attachmentOf(value: unknown): Attachment | null {
  const parts = typeof value === "string" ? REFERENCE.exec(value) : null;
  if (!parts || parts[0].length > REFERENCE_CHARS_MAX) return null;
  const [, key, digest, size, mediaType] = parts as unknown as string[];
  const sizeBytes = Number(size);
  return sizeBytes > ATTACHMENT_BYTES_MAX
    ? null
    : { key: key!, digest: digest!, sizeBytes, mediaType: mediaType! };
}

function checked(reference: string): Attachment {
  const file = attachmentOf(reference);
  if (file) return file;
  throw fault("VALIDATION_ERROR", "a reference is attachment:key:digest:bytes:type", "reference");
}

const nameOf = ({ key, digest, sizeBytes }: Attachment): string => `${key}-${digest}-${sizeBytes}`;

export class Attachments {
  private readonly side: Side<Stored>;
  private readonly background: Background;
  private readonly leave: () => void;
  private readonly fetching = new Map<string, Promise<Blob>>();

  /** The attachments of a client. They are uploaded while it is connected, or by `upload`. */
  constructor(private readonly client: Client) {
    this.side = new Side(`${client.inside.name} attachments`, client.inside.isDurable);
    const work = (): Promise<null> => this.uploadAll();
    this.background = new Background(client, "attachments", this.side, work, OTHERS_MS_MAX);
    this.leave = client.inside.join({
      waiting: async () => {
        const { length } = await this.listed(({ status }) => status !== "kept");
        return length ? `attachments that are not uploaded: ${length}` : "";
      },
      wipe: () => this.side.wipe(),
    });
  }

  /** End; what waits is uploaded when the app makes them again. */
  close(): void {
    this.leave();
    this.background.close();
    this.side.close();
  }

  /** Be told that some attachment has changed, here or in another tab. */
  onChange(listener: () => void): () => void {
    return this.side.onChange(listener);
  }

  // --- what an app adds ---------------------------------------------------------------------------

  /**
   * Keep a file, and queue it to be uploaded; it is durable when this is answered.
   *
   * Gives its reference: the value to store, in any number of rows. The same content is one attachment.
   */
  add(
    source: Blob | ArrayBuffer | ArrayBufferView,
    options: { readonly mediaType?: string } = {},
  ): Promise<Result<string>> {
    return attempt(async () => {
      const given = source instanceof Blob ? source : new Blob([source as BlobPart]);
      const named = options.mediaType ?? given.type.split(";")[0]!.trim();
      const type = named.toLowerCase() || "application/octet-stream";
      if (given.size > ATTACHMENT_BYTES_MAX) {
        throw fault("BODY_TOO_LARGE", `a file has at most ${ATTACHMENT_BYTES_MAX} bytes`, "source");
      }
      const parts = await digestsOf(given);
      const content = `${digestOf(parts)}:${given.size}:${type}`;
      const made = `attachment:${randomHex()}:${content}`;
      if (!attachmentOf(made)) {
        throw fault("VALIDATION_ERROR", "a media type is as image/jpeg", "mediaType");
      }
      return this.side.update(({ items, put, keep }) => {
        const isSame = ({ reference, parts: own }: Stored): boolean =>
          own.length > 0 && reference.endsWith(`:${content}`);
        const before = [...items.values()].find(isSame);
        const { reference, upload } = before ?? { reference: made, upload: "" };
        const name = nameOf(checked(reference));
        put(name, { ...this.entry(reference, "waiting"), parts, upload });
        keep(name, given);
        return reference;
      });
    });
  }

  private entry(reference: string, status: Stored["status"]): Stored {
    const usedMs = this.client.inside.now();
    return { reference, status, code: "", reason: "", parts: [], upload: "", usedMs };
  }

  /** How a file stands; null if its bytes are not on this device. */
  status(reference: string): Promise<Result<AttachmentEntry | null>> {
    return attempt(() =>
      this.side.update(({ items }) => items.get(nameOf(checked(reference))) ?? null),
    );
  }

  /** The files that wait to be uploaded, oldest first. */
  pending(): Promise<Result<readonly AttachmentEntry[]>> {
    return attempt(() => this.listed(({ status }) => status === "waiting"));
  }

  /** The files that the gateway does not take, with why. */
  refused(): Promise<Result<readonly AttachmentEntry[]>> {
    return attempt(() => this.listed(({ status }) => status === "refused"));
  }

  private async listed(which: (entry: Stored) => boolean): Promise<Stored[]> {
    const all = await this.side.update(({ items }) => [...items.values()]);
    return all.filter(which).sort((one, other) => one.usedMs - other.usedMs);
  }

  /** Have a file uploaded again that was refused. */
  retry(reference: string): Promise<Result<void>> {
    return this.changed(reference, { status: "waiting", code: "", reason: "" });
  }

  /** Remove a file from this device, though the gateway may not have it. */
  discard(reference: string): Promise<Result<void>> {
    return this.changed(reference, null);
  }

  private changed(reference: string, part: Partial<Stored> | null): Promise<Result<void>> {
    return attempt(async () => {
      if (!(await this.change(reference, part))) throw notHere();
    });
  }

  /** Change an entry, or remove it with its bytes; false if there is none. */
  private change(reference: string, part: Partial<Stored> | null): Promise<boolean> {
    const name = nameOf(checked(reference));
    return this.side.update(({ items, put, keep }) => {
      const entry = items.get(name);
      if (entry) put(name, part && { ...entry, ...part });
      if (!part) keep(name, null);
      return !!entry;
    });
  }

  /** Remove the files that were used longest ago, down to so many bytes; those that wait stay. */
  evict(keepBytes = 0): Promise<Result<number>> {
    return attempt(async () => {
      const all = await this.listed(() => true);
      const sizeOf = ({ reference }: Stored): number => checked(reference).sizeBytes;
      let left = all.reduce((sum, entry) => sum + sizeOf(entry), 0);
      for (const entry of all) {
        if (left <= keepBytes) break;
        if (entry.status !== "kept") continue;
        left -= sizeOf(entry);
        await this.change(entry.reference, null);
      }
      return left;
    });
  }

  // --- uploading ----------------------------------------------------------------------------------

  /** Upload what waits; a client that is connected does it by itself. */
  upload(): Promise<Result<void>> {
    return attempt(() => this.background.run());
  }

  private async uploadAll(): Promise<null> {
    let first: LakeSyncError | null = null;
    for (const entry of await this.listed(({ status }) => status === "waiting")) {
      try {
        await this.uploadOne(entry);
        await this.change(entry.reference, { status: "kept", upload: "" });
      } catch (error) {
        if (!(error instanceof LakeSyncError)) throw error;
        const { code, message, retry, isUnreachable } = error;
        const isOurs = ["AUTH_ERROR", "METHOD_NOT_ALLOWED", "ANOTHER_GATEWAY"].includes(code);
        if (retry === "never" && !isOurs) {
          await this.change(entry.reference, { status: "refused", code, reason: message });
          continue;
        }
        first ??= error; // a file that fails does not stop the others
        if (isUnreachable || isOurs) break;
      }
    }
    if (first) throw first;
    return null;
  }

  private async uploadOne({ reference, parts, upload: begun }: Stored): Promise<void> {
    const bytes = await this.side.bytes(nameOf(checked(reference)));
    if (!bytes) throw damaged();
    let upload = begun;
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const { epoch } = this.client.inside.memory.position;
      const body = { reference, parts, ...(upload && { upload }), ...(epoch && { epoch }) };
      const state = await this.background.ask<{
        stored?: boolean;
        upload?: string;
        requests?: readonly Signed[];
      }>("POST", "attachments", body);
      if (state.stored) return;
      if (state.upload && state.upload !== upload) {
        upload = state.upload;
        await this.change(reference, { upload });
      }
      for (const request of state.requests ?? []) {
        const part = await partOf(bytes, request.part ?? 1);
        try {
          await this.store("PUT", request, part);
        } catch (error) {
          // Bytes that never arrive whole may be wrong from the beginning.
          const isSuspect = error instanceof LakeSyncError && error.code === "DAMAGED_ON_THE_WAY";
          if (isSuspect && digestOf(await digestsOf(bytes)) !== checked(reference).digest) {
            throw damaged();
          }
          throw error;
        }
      }
    }
    throw fault("INTERNAL_ERROR", "an upload does not end; report it");
  }

  /** Make a signed request; what is there already is no error. */
  private async store(
    method: string,
    signed: Signed,
    body?: Uint8Array<ArrayBuffer>,
    range = "",
  ): Promise<Response> {
    const { url, headers } = signed;
    const send = this.client.inside.address.fetch ?? fetch;
    const { signal } = this.background;
    let answer: Response;
    let text: string;
    try {
      answer = await send(url, {
        method,
        headers: { ...headers, ...(range && { range }) },
        body: body ?? null,
        signal,
      });
      if (answer.ok && answer.headers.has("etag")) return answer;
      text = await answer.text();
    } catch {
      throw cut();
    }
    const code = /<Code>([A-Za-z0-9]{1,64})<\/Code>/.exec(text)?.[1];
    if (answer.status === 412 && code) return answer;
    throw refusal(answer.status, code);
  }

  // --- fetching -----------------------------------------------------------------------------------

  /**
   * The file that a cell refers to; it is downloaded unless it is here.
   *
   * `NOT_YET_UPLOADED`: its client has not uploaded it.
   *
   * @param reference - which one, if the cell has several
   */
  get(table: string, rowId: string, column: string, reference?: string): Promise<Result<Blob>> {
    return attempt(async () => {
      const row = await this.client.get(table, rowId);
      if (!row.ok) throw row.error;
      const there = new Set(referencesIn(row.value?.[column]));
      const wanted = [...there].filter((each) => reference === undefined || each === reference);
      const [only, other] = wanted;
      if (only === undefined) {
        throw fault("NOT_FOUND", "no such row refers to such a file in that column", "column");
      }
      if (other)
        throw fault("VALIDATION_ERROR", "the cell has several files: say which", "reference");
      const place = { table, rowId, column, reference: only };
      const fetching = this.fetching.get(only) ?? this.fetched(place);
      this.fetching.set(only, fetching);
      return fetching.finally(() => this.fetching.delete(only));
    });
  }

  /** A file that is on this device; null if it would have to be downloaded. */
  local(reference: string): Promise<Result<Blob | null>> {
    return attempt(() => this.here(reference));
  }

  private async here(reference: string): Promise<Blob | null> {
    const file = checked(reference);
    const bytes = await this.side.bytes(nameOf(file));
    if (!bytes) return null;
    await this.change(reference, { usedMs: this.client.inside.now() });
    return bytes.slice(0, bytes.size, file.mediaType);
  }

  private async fetched(place: { readonly reference: string }): Promise<Blob> {
    const { reference } = place;
    const known = await this.here(reference);
    if (known) return known;
    const file = checked(reference);
    const name = nameOf(file);
    const count = Math.max(1, Math.ceil(file.sizeBytes / PART_BYTES));
    const parts: Blob[] = [];
    let signed: Signed | null = null;
    for (let part = 1; part <= count; part += 1) {
      const partName = `${name} ${part}`;
      let bytes = await this.side.bytes(partName);
      if (!bytes) {
        signed ??= await this.background.ask<Signed>("POST", "attachments/download", place);
        bytes = await this.received(signed, file, part, count);
        const arrived = bytes;
        if (count > 1) await this.side.update(({ keep }) => keep(partName, arrived));
      }
      parts.push(bytes);
    }
    const whole = new Blob(parts, { type: file.mediaType });
    const isRight = digestOf(await digestsOf(whole)) === file.digest;
    await this.side.update(({ put, keep }) => {
      for (const part of parts.keys()) keep(`${name} ${part + 1}`, null);
      if (!isRight) return;
      put(name, this.entry(reference, "kept"));
      keep(name, whole);
    });
    if (!isRight) throw fault("DAMAGED_ON_THE_WAY", "the bytes are not the reference's; try again");
    return whole;
  }

  private async received(
    signed: Signed,
    file: Attachment,
    part: number,
    count: number,
  ): Promise<Blob> {
    const start = (part - 1) * PART_BYTES;
    const end = Math.min(file.sizeBytes, part * PART_BYTES);
    const range = count > 1 ? `bytes=${start}-${end - 1}` : "";
    const answer = await this.store("GET", signed, undefined, range);
    let bytes: Blob;
    try {
      bytes = await answer.blob();
    } catch {
      throw cut();
    }
    // A server that knows no ranges sends all of it.
    if (answer.status === 200 && count > 1) bytes = bytes.slice(start, end);
    if (bytes.size !== end - start) throw cut();
    return bytes;
  }
}

/** The references in a value: itself, or inside of JSON. */
function* referencesIn(value: unknown): Generator<string> {
  if (attachmentOf(value)) yield value as string;
  else if (typeof value === "string" && /^[[{]/.test(value)) {
    try {
      yield* referencesIn(JSON.parse(value));
    } catch {
      return; // text that only begins so
    }
  } else if (typeof value === "object" && value !== null) {
    for (const each of Object.values(value)) yield* referencesIn(each);
  }
}

// --- bytes ----------------------------------------------------------------------------------------

async function partOf(bytes: Blob, part: number): Promise<Uint8Array<ArrayBuffer>> {
  const slice = bytes.slice((part - 1) * PART_BYTES, part * PART_BYTES);
  return new Uint8Array(await slice.arrayBuffer());
}

/** The digests of a file's parts. */
async function digestsOf(bytes: Blob): Promise<string[]> {
  const digests: string[] = [];
  // A page that is not from a secure origin has none.
  const subtle = (crypto as Partial<Crypto>).subtle;
  for (let part = 1; part === 1 || (part - 1) * PART_BYTES < bytes.size; part += 1) {
    const content = await partOf(bytes, part);
    digests.push(
      subtle ? hex(new Uint8Array(await subtle.digest("SHA-256", content))) : sha256(content),
    );
  }
  return digests;
}

/** The digest of a file, from those of its parts. */
function digestOf(parts: readonly string[]): string {
  if (parts.length === 1) return parts[0]!;
  const digits = parts.join("").match(/../g)!;
  return sha256(Uint8Array.from(digits, (pair) => parseInt(pair, 16)));
}

// --- errors ---------------------------------------------------------------------------------------

const cut = (): LakeSyncError => fault("UNREACHABLE", "the store cannot be reached; try again");
const notHere = (): LakeSyncError =>
  fault("NOT_FOUND", "no file on this device has this reference", "reference");
const damaged = (): LakeSyncError =>
  fault("FILE_CORRUPT", "its bytes on this device are damaged: discard it, and add it again");

/** What a store's refusal means. */
function refusal(status: number, code: string | undefined): LakeSyncError {
  if (status === 429 || status === 503)
    return fault("RATE_LIMITED", "the store is busy; try later");
  if (!code) return fault("NOT_THE_GATEWAY", `something else than the store answered (${status})`);
  if (["BadDigest", "InvalidDigest", "IncompleteBody"].includes(code)) {
    return fault("DAMAGED_ON_THE_WAY", "the bytes that arrived are others; try again");
  }
  const isOver = status === 403 || status === 404; // the address, or the upload
  return fault(isOver ? "UNAVAILABLE" : "ADAPTER_ERROR", `the store refused (${status} ${code})`);
}
