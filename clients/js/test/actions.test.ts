/** Actions: queued at any time, done once, and told; after the edits that were made before them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { Actions } from "../src/actions.js";
import { Client } from "../src/index.js";
import { errorOf, valueOf } from "./results.js";

type Fields = Record<string, any>;

const DAY_MS = 86_400_000;
let number = 0;

/** A gateway that runs each action once, and a network that fails as it is told to. */
class Gateway {
  readonly done = new Map<string, Fields>();
  readonly asked: [string, Fields | null][] = [];
  /** What becomes of an action; nothing if it is done. */
  outcome: (action: Fields) => Fields | null = () => null;
  /** Why an edit is refused. */
  refuses: (delta: Fields) => string = () => "";
  /** Called before and after each request is carried out; may throw. */
  before: (path: string, body: any) => Response | undefined = () => undefined;
  after: (path: string) => void = () => undefined;

  readonly fetch = async (url: unknown, given?: RequestInit): Promise<Response> => {
    const path = (url as string).split("/").at(-1)!;
    const body = given?.body ? (JSON.parse(given.body as string) as Fields) : null;
    this.asked.push([path, body]);
    const instead = this.before(path, body);
    if (instead) return instead;
    const answer = Response.json(this.answer(path, body!));
    this.after(path);
    return answer;
  };

  private answer(path: string, body: Fields): object {
    if (path === "actions") return { connectors: { mail: [{ actionType: "send" }] } };
    if (path === "pull") return { deltas: [], serverHlc: "0", hasMore: false, epoch: "e1.1" };
    if (path === "action") return { results: body.actions.map((one: Fields) => this.run(one)), serverHlc: "1" }; // prettier-ignore
    const results = body.deltas.flatMap((delta: Fields, index: number) => {
      const code = this.refuses(delta);
      return code ? [{ index, deltaId: delta.deltaId, code, error: "no" }] : [];
    });
    const accepted = body.deltas.length - results.length;
    return { serverHlc: "1", accepted, results, serverTimeMs: Date.now(), epoch: "e1.1" };
  }

  private run(action: Fields): object {
    const { actionId, params } = action;
    const outcome = this.done.has(actionId) ? null : this.outcome(action);
    if (outcome) return { actionId, message: "no", retryable: false, ...outcome };
    this.done.set(actionId, params);
    return { actionId, data: { shipment: params.order }, serverHlc: "1" };
  }

  of(path: string): Fields[] {
    return this.asked.filter(([asked]) => asked === path).map(([, body]) => body!);
  }
}

interface Opened {
  client: Client;
  actions: Actions;
  gateway: Gateway;
  name: string;
}

type Given = Partial<{ gateway: Gateway; name: string; inMemory: boolean; now: () => number }>;

async function opened({
  gateway = new Gateway(),
  name = `actions ${number++}`,
  inMemory = false,
  ...more
}: Given = {}): Promise<Opened> {
  const address = { url: "https://gateway.example", gateway: "g1", clientId: "c1", token: "t" };
  const client = await valueOf(
    Client.open({ ...address, name, inMemory, fetch: gateway.fetch, ...more }),
  );
  return { client, actions: new Actions(client), gateway, name };
}

const lost = (): never => {
  throw new TypeError("the line broke");
};

for (const inMemory of [false, true]) {
  test(`an action is sent once and its outcome is told, ${inMemory ? "in memory" : "in IndexedDB"}`, async () => {
    const { actions, gateway } = await opened({ inMemory });
    const queued = await valueOf(actions.run("shipping", "ship", { order: 7 }, { idempotencyKey: "k" })); // prettier-ignore
    const told = queued.result();
    assert.equal((await valueOf(actions.pending())).length, 1);
    await valueOf(actions.send());
    await valueOf(actions.send());

    assert.deepEqual(await valueOf(told), { shipment: 7 });
    assert.deepEqual(await valueOf(actions.resultOf(queued.actionId)), { shipment: 7 });
    const [request, ...others] = gateway.of("action");
    assert.deepEqual(others, []);
    assert.deepEqual(request!.actions, [
      {
        actionId: queued.actionId,
        clientId: "c1",
        hlc: "0",
        connector: "shipping",
        actionType: "ship",
        params: { order: 7 },
        idempotencyKey: "k",
      },
    ]);
  });
}

test("an action whose answer was lost is sent again as it was, by the next page too", async () => {
  const first = await opened();
  const { gateway, name } = first;
  gateway.after = (path) => path === "action" && lost();
  const { actionId } = await valueOf(first.actions.run("mail", "send", { to: "ann" }));
  assert.equal((await errorOf(first.actions.send())).code, "UNREACHABLE");
  first.actions.close();
  first.client.close();

  gateway.after = () => undefined;
  const { actions } = await opened({ gateway, name });
  const [waiting] = await valueOf(actions.pending());
  assert.equal(waiting!.status, "sent");
  await valueOf(actions.send());
  const [one, other] = gateway.of("action");
  assert.deepEqual(one!.actions, other!.actions);
  assert.equal(gateway.done.size, 1);
  assert.equal((await valueOf(actions.find(actionId))).attempts, 2);
  assert.equal((await valueOf(actions.find(actionId))).status, "done");
});

test("an action that cannot be done now is sent again later, and no other waits for it", async () => {
  let now = Date.now();
  const { actions, gateway } = await opened({ now: () => now });
  gateway.outcome = ({ params }) =>
    params.later ? { code: "UNAVAILABLE", retryable: true } : null;
  const later = await valueOf(actions.run("mail", "send", { later: true }));
  await valueOf(actions.run("mail", "send", { later: false }));
  await valueOf(actions.send());
  await valueOf(actions.send());
  assert.equal(gateway.of("action").length, 1);
  assert.equal(gateway.done.size, 1);
  const entry = await valueOf(actions.find(later.actionId));
  assert.deepEqual([entry.status, entry.code, entry.attempts], ["sent", "UNAVAILABLE", 1]);

  now += 5_000;
  gateway.outcome = () => null;
  await valueOf(actions.send());
  assert.equal((await later.result()).ok, true);
});

test("a refused action is a dead letter until it is retried as another, or discarded", async () => {
  const { actions, gateway } = await opened();
  gateway.outcome = () => ({ code: "FORBIDDEN" });
  const queued = await valueOf(actions.run("mail", "send", { n: 1 }, { idempotencyKey: "k" }));
  await valueOf(actions.send());
  assert.equal((await errorOf(queued.result())).code, "FORBIDDEN");
  const [dead] = await valueOf(actions.deadLetters());
  assert.deepEqual([dead!.code, dead!.reason], ["FORBIDDEN", "no"]);

  gateway.outcome = () => null;
  const again = await valueOf(actions.retry(dead!.actionId));
  assert.notEqual(again.actionId, queued.actionId);
  await valueOf(actions.send());
  assert.equal((await valueOf(actions.find(again.actionId))).status, "done");
  assert.equal((await errorOf(actions.find(queued.actionId))).code, "NOT_FOUND");
  assert.equal((await errorOf(actions.retry(again.actionId))).code, "NOT_FOUND");
  await valueOf(actions.discard(again.actionId));
  assert.deepEqual(await valueOf(actions.deadLetters()), []);
});

test("an action waits for the edits before it, under whatever stamps they arrive", async () => {
  const { client, actions, gateway } = await opened();
  gateway.refuses = () => "SCHEMA_ERROR";
  await valueOf(client.insert("orders", "wrong", { n: 1 }));
  await valueOf(client.sync());
  assert.equal(client.status.quarantined, 1);
  let refusals = 0;
  gateway.refuses = () => (refusals++ ? "" : "CLOCK_DRIFT");
  await valueOf(client.insert("orders", "o7", { total: 30 }));
  const stamp = client.pending()[0]!.deltaId;
  const queued = await valueOf(actions.run("shipping", "ship", { order: "o7" }));
  const atOnce = await valueOf(actions.run("mail", "send", {}, { afterEdits: false }));
  await valueOf(actions.send());
  assert.deepEqual([...gateway.done.keys()], [atOnce.actionId]);

  gateway.before = (path) => (path === "pull" ? lost() : undefined);
  await client.sync("push");
  await valueOf(client.insert("orders", "o8", { total: 1 }));
  await valueOf(actions.send());
  const [, , ...pushed] = gateway.of("push").flatMap(({ deltas }) => deltas);
  assert.notEqual(pushed.at(-1).deltaId, stamp);
  assert.equal(client.status.waiting, 1);
  assert.deepEqual(await valueOf(queued.result()), { shipment: "o7" });
});

test("an action is not sent if an edit before it was refused", async () => {
  const { client, actions, gateway } = await opened();
  gateway.refuses = () => "SCHEMA_ERROR";
  await valueOf(client.insert("orders", "o7", { total: 30 }));
  const queued = await valueOf(actions.run("shipping", "ship", { order: "o7" }));
  await valueOf(client.sync());
  await valueOf(actions.send());

  const error = await errorOf(queued.result());
  assert.equal(error.code, "EDIT_REFUSED");
  assert.match(error.message, /SCHEMA_ERROR/);
  assert.deepEqual(gateway.of("action"), []);
});

test("a request that is refused as a whole is divided until the action at fault is alone", async () => {
  const { actions, gateway } = await opened();
  const refusal = { error: "no", code: "BODY_TOO_LARGE", requestId: "r" };
  gateway.before = (path, body) =>
    path === "action" && body.actions.some(({ params }: Fields) => params.bad)
      ? Response.json(refusal, { status: 413 })
      : undefined;
  for (let n = 0; n < 30; n += 1) await valueOf(actions.run("mail", "send", { bad: n === 11 }));
  await valueOf(actions.send());

  assert.equal(gateway.done.size, 29);
  assert.deepEqual((await valueOf(actions.deadLetters())).map(({ code }) => code), ["BODY_TOO_LARGE"]); // prettier-ignore
});

test("actions beyond a request's limits are sent in several, in their order", async () => {
  const { actions, gateway } = await opened();
  for (let n = 0; n < 60; n += 1) await valueOf(actions.run("mail", "send", { n, text: "x".repeat(20_000) })); // prettier-ignore
  await valueOf(actions.send());

  assert.deepEqual([...gateway.done.values()].map(({ n }) => n), [...Array(60).keys()]); // prettier-ignore
  for (const { actions: all } of gateway.of("action")) assert.ok(all.length <= 25 && JSON.stringify(all).length < 260_000); // prettier-ignore
});

test("an action without an outcome for four weeks is not sent any more", async () => {
  let now = Date.now();
  const { actions, gateway } = await opened({ now: () => now });
  gateway.before = (path) => (path === "action" ? lost() : undefined);
  const queued = await valueOf(actions.run("mail", "send"));
  await errorOf(actions.send());
  now += 27 * DAY_MS;
  await errorOf(actions.send());
  now += 2 * DAY_MS;
  gateway.before = () => undefined;
  await valueOf(actions.send());

  assert.equal((await errorOf(queued.result())).code, "UNKNOWN_OUTCOME");
  assert.equal(gateway.of("action").length, 2);
});

test("an action that was meant for another gateway is not sent to this one", async () => {
  const { client, actions, gateway } = await opened();
  await valueOf(client.sync());
  const queued = await valueOf(actions.run("mail", "send"));
  await valueOf(client.rebind("edits"));
  gateway.before = (path) =>
    path === "pull" ? Response.json({ deltas: [], serverHlc: "0", hasMore: false, epoch: "e2.1" }) : undefined; // prettier-ignore
  await valueOf(client.sync());
  await valueOf(actions.send());

  assert.equal((await errorOf(queued.result())).code, "ANOTHER_GATEWAY");
  assert.deepEqual(gateway.of("action"), []);
});

test("a request that the gateway refuses as another's leaves the action unsent", async () => {
  const { actions, gateway } = await opened();
  const refusal = { error: "no", code: "ANOTHER_GATEWAY", requestId: "r" };
  gateway.before = (path) =>
    path === "action" ? Response.json(refusal, { status: 409 }) : undefined;
  await valueOf(actions.run("mail", "send"));
  assert.equal((await errorOf(actions.send())).code, "ANOTHER_GATEWAY");

  const [waiting] = await valueOf(actions.pending());
  assert.deepEqual([waiting!.status, waiting!.attempts], ["waiting", 0]);
});

test("a connected client sends actions by itself, once their edits have arrived", async () => {
  const { client, actions, gateway } = await opened();
  gateway.before = (path) => (path === "push" || path === "action" ? lost() : undefined);
  await valueOf(client.insert("orders", "o7", {}));
  const queued = await valueOf(actions.run("shipping", "ship", { order: "o7" }));
  client.connect();
  await new Promise((done) => setTimeout(done, 100));
  assert.equal(gateway.done.size, 0);
  gateway.before = () => undefined;
  void client.sync();

  assert.deepEqual(await valueOf(queued.result()), { shipment: "o7" });
  const order = gateway.asked.map(([path]) => path).filter((path) => path !== "pull");
  assert.deepEqual(order.slice(-2), ["push", "action"]);
  client.close();
  actions.close();
});

test("nothing is sent by a client that is not connected", async () => {
  const { client, actions, gateway } = await opened();
  await valueOf(actions.run("mail", "send"));
  await valueOf(client.sync());
  await new Promise((done) => setTimeout(done, 120));
  assert.deepEqual(gateway.of("action"), []);
});

test("what is no action is refused before it is queued", async () => {
  const { actions } = await opened();
  const wrong: [string, string, any, string][] = [
    ["", "send", {}, "connector"],
    ["mail", "x".repeat(129), {}, "actionType"],
    ["mail", "send", [], "params"],
    ["mail", "send", { n: 1n }, "params"],
    ["mail", "send", { n: NaN }, "params"],
    ["mail", "send", { text: "x".repeat(65_536) }, "params"],
  ];
  for (const [connector, action, params, field] of wrong) {
    const error = await errorOf(actions.run(connector, action, params));
    assert.deepEqual([error.code, error.field], ["ACTION_VALIDATION_ERROR", field]);
  }
  assert.deepEqual(await valueOf(actions.pending()), []);
});

test("the gateway says which actions there are", async () => {
  const { actions } = await opened();
  assert.deepEqual(await valueOf(actions.describe()), { mail: [{ actionType: "send" }] });
});

test("a client is not wiped while actions wait, and takes them with it", async () => {
  const { client, actions, gateway, name } = await opened();
  await valueOf(actions.run("mail", "send"));
  assert.equal((await errorOf(client.wipe())).code, "CONFLICT");
  await valueOf(client.wipe({ loseEdits: true }));
  const again = await opened({ gateway, name });
  assert.deepEqual(await valueOf(again.actions.pending()), []);
});

test("two tabs with one queue send each action once, and tell each other", async () => {
  const one = await opened();
  const other = await opened({ name: one.name, gateway: one.gateway });
  const queued = await Promise.all(
    [one, other, one, other].map(async ({ actions }, n) => valueOf(actions.run("mail", "send", { order: n }))), // prettier-ignore
  );
  const told = other.actions.resultOf(queued[0]!.actionId);
  await Promise.all([one.actions.send(), other.actions.send()]);

  assert.deepEqual(await valueOf(told), { shipment: 0 });
  assert.deepEqual([...one.gateway.done.values()].map(({ order }) => order).sort(), [0, 1, 2, 3]);
  assert.deepEqual(await valueOf(other.actions.pending()), []);
});
