// Whose turn it is: one thread computes, so that one question is asked at a time: that of the view nearest the middle of
// the window first. A question that is dropped while it waits is never asked.

/** @type {{view: string, signal: AbortSignal, go: () => void}[]} */
const waiting = [];
let isTaken = false;

/**
 * What a question of a view is answered, once its turn has come.
 * @template T
 * @param {string} view
 * @param {AbortSignal} signal
 * @param {() => Promise<T>} ask
 * @returns {Promise<T>}
 */
export async function inTurn(view, signal, ask) {
  await new Promise((/** @type {(value?: any) => void} */ go) => {
    waiting.push({ view, signal, go });
    queueMicrotask(next); // when all views that were selected anew have asked
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

/** How far a view is from the middle of the window; what is opened beside one has no place of its own, and was just asked for. @param {string} view */
function fromMiddle(view) {
  const box = document.getElementById(view)?.getBoundingClientRect();
  const middle = innerHeight / 2;
  return box ? Math.max(0, box.top - middle, middle - box.bottom) : 0;
}
