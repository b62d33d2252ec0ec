/** One todo, with everything that is written about it. */

import { useMutation } from "@lakesync/client/react";
import { useEffect, useRef, type KeyboardEvent, type ReactNode } from "react";

import { columnsOf, TODOS, type List, type Todo, type TodoColumns } from "./data.js";
import { Back, Bin, Close, Lock } from "./icons.js";
import { Photo } from "./photo.js";
import { useDraft } from "./small.js";
import { tell } from "./telling.js";

export interface DetailsProps {
  readonly todo: Todo;
  readonly lists: readonly List[];
  readonly mayEdit: boolean;
  readonly keeperName: string;
  readonly close: () => void;
  readonly remove: (todo: Todo) => void;
  readonly children?: ReactNode;
}

export function Details({
  todo,
  lists,
  mayEdit,
  keeperName,
  close,
  remove,
  children,
}: DetailsProps): ReactNode {
  const { update } = useMutation();
  const write = (columns: TodoColumns): void => tell(update(TODOS, todo.id, columnsOf(columns)));
  const title = useDraft(todo.title, (value) => value && write({ title: value }));
  const note = useDraft(todo.note, (value) => write({ note: value }));
  const price = useDraft(todo.price, (value) => write({ price: value }));
  const grow = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const area = grow.current;
    if (!area) return;
    area.style.blockSize = "auto";
    area.style.blockSize = `${area.scrollHeight}px`;
  }, [title.value]);

  const onKey =
    (draft: { revert: () => void }) =>
    (event: KeyboardEvent<HTMLElement>): void => {
      if (event.key === "Escape") {
        event.stopPropagation();
        draft.revert();
        const field = event.currentTarget;
        setTimeout(() => field.blur());
      }
      if (event.key === "Enter" && !(event.shiftKey || event.currentTarget.dataset.lines)) {
        event.preventDefault();
        event.currentTarget.blur();
      }
    };

  const { revert: revertTitle, ...titleField } = title;
  const { revert: revertNote, ...noteField } = note;
  const { revert: revertPrice, ...priceField } = price;
  return (
    <aside className="details" aria-label={`Details of ${todo.title}`}>
      <header className="details-bar">
        <button className="icon-button back" aria-label="Back to the list" onClick={close}>
          <Back />
        </button>
        <span className="details-where">{lists.find(({ id }) => id === todo.list)?.name}</span>
        {mayEdit && (
          <button className="icon-button" aria-label="Delete" onClick={() => remove(todo)}>
            <Bin />
          </button>
        )}
        <button className="icon-button close" aria-label="Close the details" onClick={close}>
          <Close />
        </button>
      </header>
      {children}
      {!mayEdit && (
        <p className="kept">
          <Lock width={16} height={16} /> Only {keeperName} changes this list.
        </p>
      )}
      <fieldset disabled={!mayEdit} className="fields">
        <textarea
          ref={grow}
          className="details-title"
          aria-label="Title"
          rows={1}
          maxLength={200}
          onKeyDown={onKey({ revert: revertTitle })}
          {...titleField}
        />
        <label className="field">
          <span>List</span>
          <select
            value={todo.list}
            onChange={(event) => {
              const list = lists.find(({ id }) => id === event.target.value);
              if (list) write({ list: list.id, keeper: list.keeper });
            }}
          >
            {lists.map((list) => (
              <option key={list.id} value={list.id}>
                {list.name}
              </option>
            ))}
          </select>
        </label>
        <label className="field">
          <span>Price</span>
          <input
            inputMode="decimal"
            placeholder="–"
            maxLength={20}
            onKeyDown={onKey({ revert: revertPrice })}
            {...priceField}
          />
        </label>
        <label className="field tall">
          <span>Note</span>
          <textarea
            rows={4}
            placeholder="Anything to remember"
            data-lines
            onKeyDown={onKey({ revert: revertNote })}
            {...noteField}
          />
        </label>
        <Photo todo={todo} mayEdit={mayEdit} />
      </fieldset>
    </aside>
  );
}
