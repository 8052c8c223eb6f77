// A queue of requests: the server computes with one thread, so one request is sent at a time, first that of the view
// nearest the middle of the window. A request that is dropped while it waits is never sent.

/** @type {{view: string, signal: AbortSignal, go: () => void}[]} */
const waiting = [];
let isTaken = false;

/**
 * Wait for the turn of a view's request, then send it; returns the answer.
 * @template T
 * @param {string} view
 * @param {AbortSignal} signal
 * @param {() => Promise<T>} ask
 * @returns {Promise<T>}
 */
export async function inTurn(view, signal, ask) {
  await new Promise((/** @type {(value?: any) => void} */ go) => {
    waiting.push({ view, signal, go });
    queueMicrotask(next); // after all views that follow a new selection have queued their requests
  });
  try {
    signal.throwIfAborted();
    return await ask();
  } finally {
    isTaken = false;
    next();
  }
}

function next() {
  if (isTaken || !waiting.length) return;
  const ranks = waiting.map(({ view, signal }) => (signal.aborted ? -1 : fromMiddle(view)));
  const [first] = waiting.splice(ranks.indexOf(Math.min(...ranks)), 1);
  isTaken = true;
  first.go();
}

/** The distance of a view from the middle of the window; 0 for one inside another view, which a user has just requested. @param {string} view */
function fromMiddle(view) {
  const box = document.getElementById(view)?.getBoundingClientRect();
  const middle = innerHeight / 2;
  return box ? Math.max(0, box.top - middle, middle - box.bottom) : 0;
}
