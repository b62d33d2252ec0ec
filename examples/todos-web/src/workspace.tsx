/** The lists of one person in this window: what is shown, where, and what keys do. */

import type { Status } from "@lakesync/client";
import {
  useConflicts,
  useLakeSync,
  useMutation,
  useQuarantined,
  useQuery,
} from "@lakesync/client/react";
import {
  useCallback,
  useEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore,
  type KeyboardEvent as ReactKeyboardEvent,
  type ReactNode,
} from "react";

import { Attention, isShown, type Subjects } from "./attention.js";
import {
  BOTH,
  columnsOf,
  fillWithExample,
  keep,
  LISTS,
  listOf,
  movedPlace,
  removeList,
  removeTodos,
  restoreTodos,
  rowsOf,
  TODOS,
  todoOf,
  type List,
  type Todo,
} from "./data.js";
import { Details } from "./details.js";
import { useFlashes } from "./flashes.js";
import { Lock, Menu, More, Offline } from "./icons.js";
import { isTyping, Keys, moveFocus } from "./keys.js";
import { ListIcon } from "./list-icons.js";
import { Lists, nameIn } from "./lists.js";
import { usePlace } from "./place.js";
import type { Config, Person } from "./session.js";
import { Logo, SkeletonRows, useDraft } from "./small.js";
import { StatusMenu, useStanding, waitingWords, type Standing } from "./status.js";
import { onFailure, tell } from "./telling.js";
import { Todos, type Marks } from "./todos.js";

const asLists = rowsOf(listOf);
const asTodos = rowsOf(todoOf);

export function Workspace({ config, me }: { config: Config; me: Person }): ReactNode {
  const client = useLakeSync();
  const { update } = useMutation();
  const [place, go] = usePlace();
  const [isPaused, setIsPaused] = useState(false);
  const [standing, status] = useStanding();
  const listRows = useQuery({ table: LISTS, order: "place" });
  const todoRows = useQuery({ table: TODOS, order: "place" });
  const lists = useMemo(() => asLists(listRows.rows), [listRows.rows]);
  const todos = useMemo(() => asTodos(todoRows.rows), [todoRows.rows]);
  const isReady = !listRows.isLoading && !todoRows.isLoading;
  const flashes = useFlashes(client, todos, isReady && status.hasSynced);
  const refused = useQuarantined();
  const conflicts = useShownConflicts();
  const waiting = useWaiting();
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [hasKeys, setKeys] = useState(false);
  const [removed, setRemoved] = useState<readonly Todo[]>([]);
  const field = useRef<HTMLInputElement>(null);

  const list = lists.find(({ id }) => id === place.list) ?? lists[0];
  const inList = useMemo(() => todos.filter((todo) => todo.list === list?.id), [todos, list?.id]);
  const todo = todos.find(({ id }) => id === place.todo);
  const nameOf = nameIn(config.people, me);
  const mayEdit = (keeper: string): boolean => keeper === BOTH || keeper === me.id;
  const subjects: Subjects = { lists, todos, people: config.people, me };
  const marks: Marks = {
    waiting,
    refused: new Set(refused.map(({ rowId }) => rowId)),
    contested: new Set(conflicts.map(({ rowId }) => rowId)),
    flashes,
  };

  const setPaused = useCallback(
    (pause: boolean) => {
      setIsPaused(pause);
      if (pause) client.disconnect();
      else client.connect();
    },
    [client],
  );
  const showList = (id: string): void => {
    setMenuOpen(false);
    go({ list: id });
  };
  const toggle = ({ id, done }: Todo): Promise<unknown> => {
    const edited = update(TODOS, id, { done: !done });
    tell(edited);
    return edited;
  };
  const remove = (gone: readonly Todo[]): void => {
    if (!gone.length) return;
    tell(removeTodos(client, gone));
    setRemoved(gone);
    if (gone.some(({ id }) => id === place.todo)) go({ todo: "" }, false);
  };

  const onKey = (event: ReactKeyboardEvent, at: Todo): void => {
    const by = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : null;
    if (by !== null) {
      event.preventDefault();
      if (!event.altKey) moveFocus(event, by);
      else if (mayEdit(at.keeper)) {
        const siblings = inList.filter(({ done }) => done === at.done);
        const to = movedPlace(siblings, at.id, by);
        if (to !== null) tell(update(TODOS, at.id, columnsOf({ place: to })));
      }
    }
    if (!mayEdit(at.keeper)) return;
    if (event.key === "x" || event.key === "X") void toggle(at);
    if (event.key === "Delete" || event.key === "Backspace") {
      moveFocus(event, 1);
      remove([at]);
    }
  };

  useEffect(() => {
    const onWindowKey = (event: KeyboardEvent): void => {
      if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event) || hasKeys) return;
      const nth = lists[Number(event.key) - 1];
      if (event.key === "Escape") go({ todo: "" });
      else if (event.key === "?") setKeys(true);
      else if (event.key === "o" || event.key === "O") setPaused(!isPaused);
      else if (/^[1-9]$/.test(event.key) && nth) go({ list: nth.id });
      else if (event.key === "ArrowDown" && document.activeElement === document.body) {
        document.querySelector<HTMLElement>(".todo-title")?.focus();
      } else if (event.key === "n" || event.key === "N" || event.key === "/")
        field.current?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onWindowKey);
    return () => removeEventListener("keydown", onWindowKey);
  }, [go, hasKeys, isPaused, lists, setPaused]);

  useEffect(() => {
    document.title = list ? `${list.name} – Tandem` : "Tandem";
  }, [list]);

  const menu = (
    <StatusMenu
      me={me}
      standing={standing}
      status={status}
      isPaused={isPaused}
      setPaused={setPaused}
      leave={() => go({ person: "", list: "" })}
      showKeys={() => setKeys(true)}
    />
  );
  const isFirstSync = isReady && !lists.length && !status.hasSynced;

  return (
    <div
      className="workspace"
      data-person={me.id}
      data-details={todo ? true : undefined}
      data-menu={isMenuOpen || undefined}
    >
      <div className="sidebar">
        <Logo />
        <Lists lists={lists} todos={todos} shown={list?.id ?? ""} show={showList} nameOf={nameOf} />
        <div className="sidebar-end">{menu}</div>
      </div>
      {isMenuOpen && <div className="scrim" onClick={() => setMenuOpen(false)} />}
      <main className="main">
        <div className="topbar">
          <button
            className="icon-button"
            aria-label="Lists"
            aria-expanded={isMenuOpen}
            onClick={() => setMenuOpen(!isMenuOpen)}
          >
            <Menu />
          </button>
          <Logo />
          {menu}
        </div>
        <Banners
          standing={standing}
          status={status}
          isPaused={isPaused}
          back={() => setPaused(false)}
        />
        <Attention refused={refused} conflicts={conflicts} subjects={subjects} />
        {!isReady || (isFirstSync && standing !== "offline" && standing !== "paused") ? (
          <div aria-busy aria-label="The lists are loading">
            <div className="bone title" />
            <SkeletonRows count={5} />
            {status.progress && (
              <p className="quiet">
                {status.progress.read} of {status.progress.total} have arrived
              </p>
            )}
          </div>
        ) : list ? (
          <>
            <ListHeader
              key={list.id}
              list={list}
              todos={inList}
              me={me}
              mayEdit={mayEdit(list.keeper)}
              nameOf={nameOf}
              gone={() => go({ list: "" }, false)}
            />
            <Todos
              list={list}
              todos={inList}
              shown={place.todo}
              mayEdit={mayEdit(list.keeper)}
              marks={marks}
              show={(id) => go({ list: list.id, todo: id === place.todo ? "" : id })}
              toggle={toggle}
              onKey={onKey}
              clearDone={() => remove(inList.filter(({ done }) => done))}
              field={field}
            />
          </>
        ) : (
          <Empty fill={() => void fillWithExample(client).then((id) => go({ list: id }, false))} />
        )}
      </main>
      {todo && (
        <Details
          key={todo.id}
          todo={todo}
          lists={lists.filter(({ id, keeper }) => id === todo.list || mayEdit(keeper))}
          mayEdit={mayEdit(todo.keeper)}
          keeperName={nameOf(todo.keeper)}
          close={() => go({ todo: "" })}
          remove={(gone) => remove([gone])}
        />
      )}
      {hasKeys && <Keys close={() => setKeys(false)} />}
      <Undo removed={removed} forget={() => setRemoved([])} />
      <Failure />
      <Heard flashes={flashes} todos={todos} />
    </div>
  );
}

/** The conflicts that a person decides; of a place in a list, what stands is kept. */
function useShownConflicts(): ReturnType<typeof useConflicts> {
  const client = useLakeSync();
  const all = useConflicts();
  useEffect(() => {
    for (const conflict of all) {
      if (!isShown(conflict)) void client.resolve(conflict.id, conflict.won ? "mine" : "theirs");
    }
  }, [client, all]);
  return useMemo(() => all.filter(isShown), [all]);
}

/** The rows with changes that were not sent yet. */
function useWaiting(): ReadonlySet<string> {
  const client = useLakeSync();
  const subscribe = useCallback((listener: () => void) => client.onStatus(listener), [client]);
  const ids = useSyncExternalStore(subscribe, () =>
    [...new Set(client.pending().map(({ rowId }) => rowId))].join("\n"),
  );
  return useMemo(() => new Set(ids.split("\n")), [ids]);
}

/** What is to be known of all lists: no network, signed out, nothing kept, something lost. */
function Banners({
  standing,
  status,
  isPaused,
  back,
}: {
  standing: Standing;
  status: Status;
  isPaused: boolean;
  back: () => void;
}): ReactNode {
  const client = useLakeSync();
  const { waiting, lost, isDurable, lastError } = status;
  const waits = waiting ? `${waitingWords(waiting)}.` : "Go on: nothing is lost.";
  return (
    <>
      {standing === "paused" && (
        <Banner
          words={`You work offline. ${waits}`}
          act={isPaused ? ["Be back", back] : undefined}
        />
      )}
      {standing === "offline" && <Banner words={`There is no network. ${waits}`} />}
      {standing === "ended" && (
        <Banner words="This window is signed out. Your lists stay here; make demo signs you in anew." />
      )}
      {standing === "stuck" && (
        <Banner words={`The gateway does not take what is here: ${lastError?.message ?? ""}`} />
      )}
      {!isDurable && (
        <Banner words="This browser lets the page keep nothing: what was not sent is gone with the window." />
      )}
      {lost > 0 && (
        <Banner
          words={`This browser has cleared its storage, and ${lost} changes with it that were not sent.`}
          act={["Understood", () => void client.forgetLost()]}
        />
      )}
    </>
  );
}

const Banner = ({
  words,
  act,
}: {
  words: string;
  act?: readonly [what: string, act: () => void] | undefined;
}): ReactNode => (
  <p className="banner" role="status">
    <Offline />
    <span>{words}</span>
    {act && (
      <button className="text-button" onClick={act[1]}>
        {act[0]}
      </button>
    )}
  </p>
);

const Empty = ({ fill }: { fill: () => void }): ReactNode => (
  <div className="empty-all">
    <ListIcon name="basket" size="large" />
    <h1>No lists yet</h1>
    <p>Make the first one at the side, or begin with an example: groceries, the flat, a weekend.</p>
    <button className="button" onClick={fill}>
      Begin with an example
    </button>
  </div>
);

function ListHeader({
  list,
  todos,
  me,
  mayEdit,
  nameOf,
  gone,
}: {
  list: List;
  todos: readonly Todo[];
  me: Person;
  mayEdit: boolean;
  nameOf: (keeper: string) => string;
  gone: () => void;
}): ReactNode {
  const client = useLakeSync();
  const { update } = useMutation();
  const [isOpen, setOpen] = useState(false);
  const { revert, ...name } = useDraft(
    list.name,
    (value) => value && tell(update(LISTS, list.id, { name: value })),
  );
  const open = todos.filter(({ done }) => !done);
  const sum = open.reduce((total, { price }) => total + (Number(price) || 0), 0);
  const facts = [
    open.length ? `${open.length} open` : "",
    sum ? `${sum.toFixed(2)} in all` : "",
  ].filter(Boolean);
  return (
    <header className="list-header">
      <ListIcon name={list.icon} size="large" />
      <div className="list-heading">
        <h1>
          <input
            aria-label="Name of the list"
            disabled={!mayEdit}
            maxLength={60}
            onKeyDown={(event) => {
              if (event.key === "Escape") revert();
              if (event.key === "Enter") event.currentTarget.blur();
            }}
            {...name}
          />
        </h1>
        <p className="quiet">
          {list.keeper !== BOTH && (
            <span className="kept-by">
              <Lock width={15} height={15} />
              {mayEdit
                ? "Only you change this list"
                : `Only ${nameOf(list.keeper)} changes this list`}
              {facts.length > 0 && " · "}
            </span>
          )}
          {facts.join(" · ")}
        </p>
      </div>
      {mayEdit && (
        <div className="list-more">
          <button
            className="icon-button"
            aria-label="More about this list"
            aria-expanded={isOpen}
            onClick={() => setOpen(!isOpen)}
          >
            <More />
          </button>
          {isOpen && (
            <div className="menu" onClick={() => setOpen(false)}>
              <button
                className="menu-row"
                onClick={() => {
                  tell(keep(client, list, todos, list.keeper === BOTH ? me.id : BOTH));
                }}
              >
                <span>
                  <Lock />
                  {list.keeper === BOTH ? "Only I change it" : "Both change it"}
                </span>
              </button>
              <button
                className="menu-row danger"
                onClick={() => {
                  tell(removeList(client, list, todos));
                  gone();
                }}
              >
                Delete this list
              </button>
            </div>
          )}
        </div>
      )}
    </header>
  );
}

/** What did not happen, and why. */
function Failure(): ReactNode {
  const [sentence, setSentence] = useState("");
  useEffect(() => onFailure(setSentence), []);
  if (!sentence) return null;
  return (
    <div className="toast" role="alert">
      <span>{sentence}</span>
      <button className="text-button" onClick={() => setSentence("")}>
        Close
      </button>
    </div>
  );
}

function Undo({ removed, forget }: { removed: readonly Todo[]; forget: () => void }): ReactNode {
  const client = useLakeSync();
  useEffect(() => {
    if (!removed.length) return;
    const timer = setTimeout(forget, 8_000);
    return () => clearTimeout(timer);
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [removed]);
  if (!removed.length) return null;
  const [first] = removed;
  return (
    <div className="toast" role="status">
      <span>
        {removed.length === 1 ? `Deleted “${first!.title}”` : `Deleted ${removed.length}`}
      </span>
      <button
        className="text-button"
        onClick={() => {
          tell(restoreTodos(client, removed));
          forget();
        }}
      >
        Undo
      </button>
    </div>
  );
}

/** Tell a screen reader what the other person has changed. */
const Heard = ({
  flashes,
  todos,
}: {
  flashes: ReadonlySet<string>;
  todos: readonly Todo[];
}): ReactNode => {
  const titles = todos.filter(({ id }) => flashes.has(id)).map(({ title }) => title);
  return (
    <p className="visually-hidden" aria-live="polite">
      {titles.length > 0 && `Changed: ${titles.join(", ")}`}
    </p>
  );
};
