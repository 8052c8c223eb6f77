// A run while it trains: the lines of its metrics and the steps that it keeps, heard from one connection for all views.
import { signal } from "../vendor/signals-core.js";

const AGAIN = 2000; // milliseconds, after which a lost connection is opened again
const GONE = [1000, 1008]; // codes of a connection that is not to be opened again

/** @type {Map<string, {value: {lines: any[], steps: number[] | null}, subscribe: (listener: (value: any) => void) => () => void}>} */
const runs = new Map();
/** @type {Map<string, any>} */
const steps = new Map();

/**
 * What a run has written so far, as a signal; lines come from a cursor on, never the whole file again.
 * @param {string} run
 */
export function liveOf(run) {
  const known = runs.get(run);
  if (known) return known;
  const live = signal({ lines: /** @type {any[]} */ ([]), steps: /** @type {number[] | null} */ (null) });
  runs.set(run, live);
  follow(run, live);
  return live;
}

/** @param {string} run @param {{value: {lines: any[], steps: number[] | null}}} live */
function follow(run, live) {
  let cursor = 0;
  const open = () => {
    const socket = new WebSocket(`ws://${location.host}/api/live?run=${encodeURIComponent(run)}&cursor=${cursor}`);
    socket.onmessage = (event) => {
      const news = JSON.parse(event.data);
      cursor = news.cursor;
      const before = news.restarted ? [] : live.value.lines;
      live.value = { lines: news.lines.length ? [...before, ...news.lines] : before, steps: news.steps };
    };
    socket.onclose = (event) => {
      if (!GONE.includes(event.code)) setTimeout(open, AGAIN);
    };
  };
  open();
}

/**
 * The steps of a run whose weights are at hand, as a signal: those that it keeps, also new ones, and those replayed here.
 * @param {any} run as the server describes it
 */
export function stepsOf(run) {
  if (!steps.has(run.name)) {
    const found = signal(merged(run.steps, run.replayed));
    steps.set(run.name, found);
    if (run.views.training)
      liveOf(run.name).subscribe((news) => {
        const now = merged(news.steps ?? run.steps, run.replayed);
        if (now.join() !== found.value.join()) found.value = now;
      });
  }
  return steps.get(run.name);
}

/** A step was replayed, and can be looked at from now on. @param {any} run @param {number} step */
export function addReplayed(run, step) {
  run.replayed.push(step);
  const found = stepsOf(run);
  found.value = merged(found.value, [step]);
}

/** Whether a checkpoint can be looked at. @param {any} run @param {number[]} known @param {string} checkpoint */
export function atHand(run, known, checkpoint) {
  return !/^\d+$/.test(checkpoint) || Number(checkpoint) === run.step || known.includes(Number(checkpoint));
}

/** @param {number[]} some @param {number[]} others */
function merged(some, others) {
  return [...new Set([...some, ...others])].sort((a, b) => a - b);
}
