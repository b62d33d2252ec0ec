/** From an address to an open client: what is needed, and what is shown where it is missing. */

import { LakeSyncProvider } from "@lakesync/client/react";
import { useEffect, useState, type ReactNode } from "react";

import { Chooser } from "./chooser.js";
import { Photos } from "./photo.js";
import { usePlace } from "./place.js";
import {
  close,
  openClient,
  readConfig,
  sentenceOf,
  type Config,
  type Loaded,
  type Opened,
  type Person,
} from "./session.js";
import { Logo, Skeleton } from "./small.js";
import { Workspace } from "./workspace.js";

export function App(): ReactNode {
  const [config, setConfig] = useState<Loaded<Config>>({ state: "loading" });
  const [place, go] = usePlace();
  useEffect(() => {
    readConfig().then(
      (value) => setConfig({ state: "ready", value }),
      (error: unknown) => setConfig({ state: "failed", reason: sentenceOf(error) }),
    );
  }, []);

  if (config.state === "loading") return <Skeleton />;
  if (config.state === "failed") return <NoGateway reason={config.reason} />;
  const me = config.value.people.find(({ id }) => id === place.person);
  if (!me)
    return <Chooser people={config.value.people} choose={(person) => go({ person, list: "" })} />;
  return <Signed key={me.id} config={config.value} me={me} />;
}

/** The client of a person, for as long as the person uses this window. */
function Signed({ config, me }: { config: Config; me: Person }): ReactNode {
  const [opened, setOpened] = useState<Loaded<Opened>>({ state: "loading" });
  useEffect(() => {
    let isOver = false;
    const opening = openClient(config, me);
    opening.then(
      (value) => isOver || setOpened({ state: "ready", value }),
      (error: unknown) => isOver || setOpened({ state: "failed", reason: sentenceOf(error) }),
    );
    return () => {
      isOver = true;
      void opening.then(close, () => undefined);
    };
  }, [config, me]);

  if (opened.state === "loading") return <Skeleton />;
  if (opened.state === "failed") {
    return (
      <Stopped title="The lists cannot be opened">
        <p>{opened.reason}</p>
        <button className="button" onClick={() => location.reload()}>
          Try again
        </button>
      </Stopped>
    );
  }
  return (
    <LakeSyncProvider client={opened.value.client}>
      <Photos value={opened.value.photos}>
        <Workspace config={config} me={me} />
      </Photos>
    </LakeSyncProvider>
  );
}

const NoGateway = ({ reason }: { reason: string }): ReactNode => (
  <Stopped title="There is no gateway behind this page">
    <p>
      Run <code>make demo</code> in the folder of LakeSync. It starts one, and prints the address of
      this page at its end.
    </p>
    <p className="quiet">{reason}</p>
    <button className="button" onClick={() => location.reload()}>
      Try again
    </button>
  </Stopped>
);

const Stopped = ({ title, children }: { title: string; children: ReactNode }): ReactNode => (
  <main className="stopped">
    <Logo />
    <h1>{title}</h1>
    {children}
  </main>
);
