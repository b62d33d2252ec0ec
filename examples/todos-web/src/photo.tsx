/** The photo of a todo: taken or chosen here, shown on the device of the other as soon as it is there. */

import type { LakeSyncError } from "@lakesync/client";
import type { Attachments } from "@lakesync/client/attachments";
import { useMutation } from "@lakesync/client/react";
import {
  createContext,
  useContext,
  useEffect,
  useState,
  type ChangeEvent,
  type DragEvent,
  type ReactNode,
} from "react";

import { TODOS, type Todo } from "./data.js";
import { Camera, Cloud } from "./icons.js";
import { sayFailure, tell } from "./telling.js";

/** The files of the client that is open. */
export const Photos = createContext<Attachments | null>(null);

/** A photo is made no larger than this: a phone's are, and nobody sees it here. */
const SIDE_PX_MAX = 1_600;
const QUALITY = 0.85;

async function shrunk(file: File): Promise<Blob> {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, SIDE_PX_MAX / Math.max(picture.width, picture.height));
  const canvas = new OffscreenCanvas(
    Math.round(picture.width * scale),
    Math.round(picture.height * scale),
  );
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
}

export function Photo({ todo, mayEdit }: { todo: Todo; mayEdit: boolean }): ReactNode {
  const photos = useContext(Photos);
  const { update } = useMutation();
  const [isOver, setOver] = useState(false);
  const add = async (file: File | undefined): Promise<void> => {
    if (!file || !photos) return;
    let small: Blob;
    try {
      small = await shrunk(file);
    } catch {
      sayFailure(`“${file.name}” is no picture that this browser can show.`);
      return;
    }
    const added = await photos.add(small);
    if (added.ok) tell(update(TODOS, todo.id, { photo: added.value }));
    else sayFailure(added.error.message);
  };

  if (todo.photo) {
    return (
      <div className="field">
        <span>Photo</span>
        <Shown key={todo.photo} todo={todo} />
        {mayEdit && (
          <button
            type="button"
            className="text-button remove-photo"
            onClick={() => tell(update(TODOS, todo.id, { photo: null }))}
          >
            Remove the photo
          </button>
        )}
      </div>
    );
  }
  if (!mayEdit) return null;
  return (
    <label
      className="add-photo"
      data-over={isOver || undefined}
      onDragOver={(event: DragEvent) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event: DragEvent) => {
        event.preventDefault();
        setOver(false);
        void add(event.dataTransfer.files[0]);
      }}
    >
      <Camera /> Add a photo
      <input
        type="file"
        accept="image/*"
        className="visually-hidden"
        onChange={(event: ChangeEvent<HTMLInputElement>) => {
          void add(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
    </label>
  );
}

type Found =
  | { readonly state: "loading" }
  | { readonly state: "here"; readonly url: string }
  | { readonly state: "missing"; readonly error: LakeSyncError };

function Shown({ todo }: { todo: Todo }): ReactNode {
  const photos = useContext(Photos);
  const [found, setFound] = useState<Found>({ state: "loading" });
  const [waits, setWaits] = useState(false);
  const [round, setRound] = useState(0);
  const { id, photo } = todo;

  useEffect(() => {
    if (!photos) return;
    let isGone = false;
    let url = "";
    void photos.get(TODOS, id, "photo").then((got) => {
      if (isGone) return;
      if (got.ok) url = URL.createObjectURL(got.value);
      setFound(got.ok ? { state: "here", url } : { state: "missing", error: got.error });
    });
    return () => {
      isGone = true;
      if (url) URL.revokeObjectURL(url);
    };
  }, [photos, id, photo, round]);

  useEffect(() => {
    if (!photos) return;
    const look = (): void =>
      void photos.status(photo).then((got) => setWaits(got.ok && got.value?.status === "waiting"));
    look();
    return photos.onChange(look);
  }, [photos, photo]);

  // What is not there yet is asked for again.
  const isLater = found.state === "missing" && found.error.retry !== "never";
  useEffect(() => {
    if (!isLater) return;
    const timer = setTimeout(() => setRound((nth) => nth + 1), 3_000);
    return () => clearTimeout(timer);
  }, [isLater, round]);

  return (
    <figure className="photo" aria-busy={found.state === "loading"}>
      {found.state === "here" && <img src={found.url} alt={`Photo of ${todo.title}`} />}
      {found.state === "loading" && <div className="bone" />}
      {found.state === "missing" && (
        <figcaption>
          <Camera />
          {sentenceOf(found.error)}
        </figcaption>
      )}
      {found.state === "here" && waits && (
        <figcaption className="photo-waits">
          <Cloud width={16} height={16} /> Waits to be sent
        </figcaption>
      )}
    </figure>
  );
}

function sentenceOf(error: LakeSyncError): string {
  if (error.code === "NOT_YET_UPLOADED") return "The photo is on its way: the other device has it.";
  if (error.isUnreachable) return "The photo comes once there is a network.";
  return error.message;
}
