/** Hooks: what components show, and that nothing stays behind when they are gone. */

import "./dom.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { act, createElement as h, StrictMode, Suspense, type FC, type ReactNode } from "react";
import { createRoot, hydrateRoot, type Root } from "react-dom/client";
import { renderToString } from "react-dom/server";

import { Actions } from "../src/actions.js";
import { LakeSyncError, type Client, type Query } from "../src/index.js";
import {
  LakeSyncProvider,
  useAction,
  useActionDiscovery,
  useLakeSync,
  useMutation,
  useQuarantined,
  useQuery,
  useSyncStatus,
  type ActionState,
  type Mutation,
} from "../src/react.js";
import { listenersOf, openClient } from "./gateway.js";

let client: Client;
let watches: number;

beforeEach(async () => {
  client = await openClient(({ columns }) => (columns.title === "" ? "SCHEMA_ERROR" : ""));
  watches = 0;
  const watch = client.watch.bind(client);
  client.watch = (...given) => {
    watches++;
    return watch(...given);
  };
});

const OPEN: Query = { table: "todos", where: { done: false }, order: "title" };

const Todos: FC<{ query?: Query; suspense?: boolean }> = ({ query = OPEN, suspense = false }) => {
  const { rows, isLoading } = useQuery(query, { suspense });
  return isLoading ? "loading" : rows.map((row) => row.title as string).join(", ") || "nothing";
};

const provided = (of: Client | null, ...children: ReactNode[]): ReactNode =>
  h(LakeSyncProvider, { client: of }, ...children);

/** Render; returns the root and its element. */
async function shown(node: ReactNode): Promise<[Root, HTMLElement]> {
  const element = document.createElement("div");
  const root = createRoot(element);
  await act(async () => root.render(node));
  await settled();
  return [root, element];
}

/** Let everything happen that was begun. */
const settled = (): Promise<void> =>
  act(() => new Promise<void>((resolve) => setImmediate(resolve)));

const add = async (rowId: string, title: string): Promise<void> => {
  await act(async () => {
    const written = await client.insert("todos", rowId, { title, done: false });
    assert.ok(written.ok);
  });
  await settled();
};

test("a query shows its rows, and what changes of them", async () => {
  await add("r1", "Milk");
  const [root, element] = await shown(provided(client, h(Todos)));
  assert.equal(element.textContent, "Milk");

  await add("r2", "Bread");
  assert.equal(element.textContent, "Bread, Milk");

  await act(() => client.update("todos", "r1", { done: true }));
  await settled();
  assert.equal(element.textContent, "Bread");
  await act(async () => root.unmount());
});

test("in strict mode a query shows the same, and ends with its component", async () => {
  await add("r1", "Milk");
  const [root, element] = await shown(h(StrictMode, null, provided(client, h(Todos))));
  await add("r2", "Bread");
  assert.equal(element.textContent, "Bread, Milk");

  await act(async () => root.unmount());
  assert.equal(listenersOf(client), 0);
});

test("another query object that says the same is not watched again", async () => {
  const [root] = await shown(provided(client, h(Todos, { query: { ...OPEN } })));
  const again = { order: "title", where: { done: false }, table: "todos" };
  await act(async () => root.render(provided(client, h(Todos, { query: again }))));
  assert.equal(watches, 1);

  await act(async () => root.render(provided(client, h(Todos, { query: { ...OPEN, limit: 1 } }))));
  assert.equal(watches, 2);
  await act(async () => root.unmount());
});

test("components that show one query watch it once", async () => {
  await add("r1", "Milk");
  const [root, element] = await shown(provided(client, h(Todos), " and ", h(Todos)));

  assert.equal(element.textContent, "Milk and Milk");
  assert.equal(watches, 1);
  await act(async () => root.unmount());
});

test("a thousand components that come and go leave no listener", async () => {
  const All: FC = () => {
    useSyncStatus();
    useQuarantined();
    useMutation();
    return h(Todos, { query: { table: "todos", limit: useSyncStatus().waiting + 1 } });
  };
  const root = createRoot(document.createElement("div"));
  for (let each = 0; each < 1_000; each++) {
    await act(async () => root.render(provided(client, h(All, { key: each }))));
  }
  assert.equal(listenersOf(client), 3);
  await act(async () => root.render(null));

  assert.equal(listenersOf(client), 0);
});

test("a component suspends until its rows are there, and shows them later", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  await add("r1", "Milk");
  let waits = 0;
  const Wait: FC = () => `wait ${++waits}`;
  const [root, element] = await shown(
    h(
      StrictMode,
      null,
      provided(client, h(Suspense, { fallback: h(Wait) }, h(Todos, { suspense: true }))),
    ),
  );
  assert.ok(waits > 0);
  assert.equal(element.textContent, "Milk");
  await add("r2", "Bread");
  assert.equal(element.textContent, "Bread, Milk");
  await act(async () => root.unmount());
});

test("a component that suspended and never came leaves no listener", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const [root] = await shown(
    provided(client, h(Suspense, { fallback: "wait" }, h(Todos, { suspense: true }))),
  );
  await act(async () => root.unmount());
  context.mock.timers.tick(10_000);

  assert.equal(listenersOf(client), 0);
});

test("on a server nothing is read, and the browser takes over from it", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  await add("r1", "Milk");
  const page = provided(client, h(Suspense, null, h(Todos, { suspense: true })));
  const html = renderToString(page);
  assert.ok(html.includes("loading"));
  assert.equal(watches, 0);

  const element = document.createElement("div");
  element.innerHTML = html;
  const complained = mock.method(console, "error", () => undefined);
  let root: Root;
  await act(async () => {
    root = hydrateRoot(element, page);
  });
  await settled();
  assert.equal(element.textContent, "Milk");
  assert.equal(complained.mock.callCount(), 0);
  complained.mock.restore();
  await act(async () => root.unmount());
});

test("before a client is open hooks show that they load, and then what it has", async () => {
  const Status: FC = () =>
    useSyncStatus().isDurable ? "durable" : String(useSyncStatus().waiting);
  await add("r1", "Milk");
  const [root, element] = await shown(provided(null, h(Todos), h(Status)));
  assert.equal(element.textContent, "loading0");

  await act(async () => root.render(provided(client, h(Todos), h(Status))));
  await settled();
  assert.equal(element.textContent, "Milk1");
  await act(async () => root.unmount());
});

test("without a provider, or an open client, a hook says what is missing", async () => {
  const Bare: FC = () => useLakeSync().status.waiting;

  assert.throws(() => renderToString(h(Bare)), /LakeSyncProvider/);
  assert.throws(() => renderToString(provided(null, h(Bare))), /not open/);
});

test("a status that stays the same renders nothing again", async () => {
  let renders = 0;
  const Page: FC = () => `${useSyncStatus().waiting} ${useQuarantined().length} ${++renders}`;
  await act(() => client.sync());
  const [root, element] = await shown(provided(client, h(Page)));
  await act(() => client.sync());

  assert.equal(element.textContent, "0 0 1");
  await act(async () => root.unmount());
});

test("edits, what waits and what was refused are shown as they change", async () => {
  let edits!: Mutation;
  const Page: FC = () => {
    edits = useMutation();
    const { waiting, quarantined } = useSyncStatus();
    const reasons = useQuarantined().map(({ code, rowId }) => `${rowId}: ${code}`);
    return `${waiting} wait, ${quarantined} refused (${reasons.join()})`;
  };
  const [root, element] = await shown(h(StrictMode, null, provided(client, h(Page))));
  assert.equal(element.textContent, "0 wait, 0 refused ()");

  const first = edits;
  await act(() => edits.insert("todos", "r1", { title: "" }));
  assert.equal(element.textContent, "1 wait, 0 refused ()");
  await act(() => client.sync());
  assert.equal(element.textContent, "0 wait, 1 refused (r1: SCHEMA_ERROR)");

  await act(() => client.amend(client.quarantined()[0]!.deltaId, { title: "Milk" }));
  await act(() => client.sync());
  assert.equal(element.textContent, "0 wait, 0 refused ()");
  await act(() => edits.remove("todos", "r1"));
  assert.equal(element.textContent, "1 wait, 0 refused ()");
  assert.equal(edits, first);
  await act(async () => root.unmount());
});

test("an action is followed from the click to its outcome", async () => {
  const actions = new Actions(client);
  let state!: ActionState;
  const Button: FC<{ follows?: string }> = ({ follows = "" }) => {
    state = useAction(follows);
    return `${state.isPending} ${state.action?.status ?? "none"} ${state.action?.reason ?? ""}`;
  };
  const page = (props?: { follows: string }) =>
    h(StrictMode, null, h(LakeSyncProvider, { client, actions }, h(Button, props)));
  const [root, element] = await shown(page());
  assert.equal(element.textContent, "false none ");

  const { run } = state;
  const queued = await act(() => state.run("mail", "send", { to: "ada" }));
  await settled();
  assert.ok(queued.ok);
  assert.equal(element.textContent, "true waiting ");
  assert.equal(state.run, run);

  await act(() => actions.send());
  await settled();
  assert.equal(element.textContent, "false dead no such connector");
  await act(async () => root.unmount());

  const [again, other] = await shown(page({ follows: queued.value.actionId }));
  assert.equal(other.textContent, "false dead no such connector");
  await act(async () => again.unmount());
  actions.close();
  assert.equal(listenersOf(client), 0);
});

test("what a client may run is asked once, and again when it is wanted", async () => {
  const actions = new Actions(client);
  let asked = 0;
  const describe = actions.describe.bind(actions);
  actions.describe = () => (asked++ ? describe() : Promise.resolve(refusal));
  const refusal = { ok: false, error: new LakeSyncError("UNREACHABLE", "no network") } as const;
  let refetch = (): void => undefined;
  const Shown: FC = () => {
    const { connectors, isLoading, error, ...more } = useActionDiscovery();
    refetch = more.refetch;
    return `${isLoading} ${error?.code ?? ""} ${Object.keys(connectors).join()};`;
  };
  const page = h(LakeSyncProvider, { client, actions }, h(Shown), h(Shown));
  assert.match(renderToString(page), /true\s+;/);
  const [root, element] = await shown(page);
  assert.equal(element.textContent, "false UNREACHABLE ;false UNREACHABLE ;");
  assert.equal(asked, 1);

  await act(async () => refetch());
  await settled();
  assert.equal(element.textContent, "false  mail;false  mail;");
  await act(async () => root.unmount());
  actions.close();
});
