// The page's own server, on this machine.
import { inTurn } from "../core/turns.js";
import { decode, decodeParts } from "../core/wire.js";
import { follows, Refused } from "./source.js";

const AGAIN = 2000; // milliseconds before a lost connection is opened again

export const GONE = "the server does not answer: is `clearformer look` still running?";

/**
 * The source of a page with its server.
 * @param {any[]} runs as the server describes them
 * @returns {import("./source.js").Source}
 */
export function serverOf(runs) {
  const views = runs.flatMap((run) => Object.entries({ ...run.views, ...run.views_of_two }));
  const long = new Set(views.filter(([_, view]) => view.is_long).map(([name]) => name)); // the server runs these in a queue of their own
  const inParts = new Set(views.filter(([_, view]) => view.is_in_parts).map(([name]) => name));
  return {
    hasOthers: true,
    fixed: [],
    gone: GONE,
    within: follows,
    follow,
    ask: (view, selection, signal, tell) => {
      const go = () => (inParts.has(view) ? askedInParts(view, selection, signal, tell) : asked(view, selection, signal));
      return long.has(view) ? go() : inTurn(view, signal, go);
    },
    table: async (view, selection, signal) => (await post(`api/table/${view}`, selection, signal)).json(),
    progress: async (name) => {
      const response = await fetch(`api/progress/${name}`).catch(() => null);
      return response?.ok ? response.json() : null;
    },
    end: async (name) => void (await post(`api/end/${name}`, null)),
    replay: async (selection) => (await (await post("api/replay", selection)).json()).replayed,
    picture: async (view, kind, selection) => (await post(`api/figure/${view}.${kind}`, selection)).blob(),
  };
}

/** A view's answer. @param {string} view @param {any} selection @param {AbortSignal} signal */
async function asked(view, selection, signal) {
  return decode(await (await post(`api/view/${view}`, selection, signal)).arrayBuffer());
}

/** A view's answer in parts. @param {string} view @param {any} selection @param {AbortSignal} signal @param {(part: any) => void} tell */
async function askedInParts(view, selection, signal, tell) {
  const { body } = await post(`api/view/${view}`, selection, signal);
  let last = /** @type {any} */ (null);
  await decodeParts(/** @type {ReadableStream<Uint8Array>} */ (body), (part) => {
    if (part.error) throw new Refused(part.error);
    last = part;
    tell(part);
  });
  if (!last) throw new Error("the answer is empty");
  return last;
}

/** The whole page of a selection as one file. @param {any} selection */
export async function exported(selection) {
  return (await post("api/export", selection)).blob();
}

const CONFLICT = 409; // it was ended, by the user or by a newer request

/**
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} [signal]
 */
async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Refused(await complaint(response), response.status === CONFLICT);
  return response;
}

/**
 * The one-line error message of a refused request.
 * @param {Response} response
 */
async function complaint(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text.trim() || `the server answered ${response.status}`;
  }
}

/**
 * Follow a run's metrics; after a lost connection, continue from the last cursor.
 * @param {string} run
 * @param {(news: {lines: any[], restarted: boolean, steps: number[] | null}) => void} tell
 */
function follow(run, tell) {
  let cursor = 0;
  let stopped = false;
  /** @type {WebSocket} */
  let socket;
  const open = () => {
    socket = new WebSocket(`ws://${location.host}/api/live?run=${encodeURIComponent(run)}&cursor=${cursor}`);
    socket.onmessage = (event) => {
      const news = JSON.parse(event.data);
      cursor = news.cursor;
      tell(news);
    };
    socket.onclose = (event) => {
      if (!stopped && event.code !== 1008 && event.code !== 1000) setTimeout(open, AGAIN);
    };
  };
  open();
  return () => {
    stopped = true;
    socket.close();
  };
}
