/**
 * Counts what a page does with its storage and the network, and has it killed at one of these points.
 *
 * A synchronous request asks for the kill, so that nothing goes on in the page meanwhile.
 */
(() => {
  let count = 0;
  let last = Infinity;
  const ask = (path) => {
    const request = new XMLHttpRequest();
    request.open("POST", path, false);
    request.send();
  };
  const reach = () => {
    count += 1;
    if (count !== last) return;
    try {
      ask("/kill");
    } finally {
      for (;;); // until it takes effect
    }
  };
  const counted = (prototype, names) => {
    for (const name of names) {
      const real = prototype[name];
      prototype[name] = function (...given) {
        reach();
        const answer = real.apply(this, given);
        if (answer instanceof IDBTransaction) answer.addEventListener("complete", reach);
        return answer;
      };
    }
  };
  counted(IDBDatabase.prototype, ["transaction"]);
  counted(IDBObjectStore.prototype, ["get", "getAll", "put", "delete", "openCursor"]);
  const send = globalThis.fetch;
  globalThis.fetch = async (...given) => {
    reach();
    const answer = await send(...given);
    reach();
    return answer;
  };
  globalThis.points = {
    /** Have the page killed at a point; the points from here on are counted. */
    killAt: (point) => {
      count = 0;
      last = point;
    },
    count: () => count,
    /** Say something that the test hears, even if the page dies at once. */
    say: (text) => ask(`/said/${text}`),
  };
})();
