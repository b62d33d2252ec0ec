/** What can go wrong: a stable code, a sentence, and when to try again. */

export type Retry = "never" | "later" | "after_refresh";

const AFTER_REFRESH = new Set([
  "TABLE_NOT_DECLARED", "ROW_DELETED", "OUT_OF_ORDER", "CLOCK_DRIFT", "AUTH_ERROR", "CONFLICT",
  "CURSOR_EXPIRED",
]); // prettier-ignore
const LATER = new Set([
  "UNAVAILABLE", "SOURCE_UNAVAILABLE", "CONTENTION", "BACKPRESSURE_ERROR", "RATE_LIMITED",
  "UNREACHABLE", "NOT_THE_GATEWAY", "UPGRADE_REQUIRED", "TRANSACTION_OPEN", "ACTION_RUNNING",
  "NOT_YET_UPLOADED", "DAMAGED_ON_THE_WAY", "ADAPTER_ERROR", "FLUSH_ERROR",
]); // prettier-ignore
/** Refusals that are about the request itself: `InvalidInput` of the gateway's tree. */
const INVALID = new Set([
  "VALIDATION_ERROR", "INVALID_CURSOR", "SYNC_RULES_ERROR", "DESTINATION_ERROR", "FLOW_ERROR",
  "SCHEMA_ERROR", "ROW_TOO_LARGE", "DELTA_TOO_LARGE", "BODY_TOO_LARGE", "CHECKPOINT_TOO_LARGE",
  "ATOMIC_PUSH_TOO_LARGE", "ATOMIC_PUSH_REFUSED", "TOO_MANY_TABLES", "TOO_MANY_COLUMNS",
  "TABLE_NOT_DECLARED", "NAME_TAKEN", "ROW_FORGOTTEN", "ROW_DELETED", "EDIT_REFUSED",
  "ACTION_VALIDATION_ERROR", "ACTION_NOT_SUPPORTED", "OUT_OF_ORDER", "NOT_FOUND",
  "METHOD_NOT_ALLOWED",
]); // prettier-ignore
const FORBIDDEN = new Set(["FORBIDDEN", "COLUMN_OMITTED"]);

export class LakeSyncError extends Error {
  override readonly name = "LakeSyncError";

  constructor(
    readonly code: string,
    message: string,
    readonly field: string | null = null,
    /** Seconds to wait before trying again, where the gateway asks for that. */
    readonly retryAfterS = 0,
  ) {
    super(message);
  }

  get retry(): Retry {
    if (AFTER_REFRESH.has(this.code)) return "after_refresh";
    return LATER.has(this.code) ? "later" : "never";
  }

  /** Whether something on the way to the gateway said this: it decides nothing about an edit. */
  get isForeign(): boolean {
    return this.code === "NOT_THE_GATEWAY";
  }

  /** Whether nothing of the gateway came back. */
  get isUnreachable(): boolean {
    return this.code === "UNREACHABLE" || this.isForeign;
  }

  /** Whether the request was refused for good, whatever it held. */
  get refusesRequest(): boolean {
    return this.retry === "never" && (INVALID.has(this.code) || FORBIDDEN.has(this.code));
  }

  get isAboutSize(): boolean {
    return this.code === "ATOMIC_PUSH_TOO_LARGE" || this.code === "BODY_TOO_LARGE";
  }
}

export const fault = (code: string, message: string, field: string | null = null): LakeSyncError =>
  new LakeSyncError(code, message, field);
