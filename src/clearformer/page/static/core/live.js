// A run while it trains: the lines of its metrics and the steps that it keeps, from one connection for all views.
import { signal } from "../vendor/signals-core.js";

/** @typedef {import("../sources/source.js").Source} Source */
/** @typedef {{value: any, subscribe: (listener: (value: any) => void) => () => void}} Signal */

/** @type {WeakMap<Source, Map<string, Signal>>} */
const runs = new WeakMap();
/** @type {Map<string, any>} */
const steps = new Map();
const NONE = signal(/** @type {number[]} */ ([]));

/**
 * The metrics that a run has written so far, as a signal; only new lines are sent, never the whole file again.
 * @param {string} run
 * @param {Source} source
 */
export function liveOf(run, source) {
  if (!runs.has(source)) runs.set(source, new Map());
  const known = /** @type {Map<string, Signal>} */ (runs.get(source));
  if (!known.has(run)) {
    const live = signal({ lines: /** @type {any[]} */ ([]), steps: /** @type {number[] | null} */ (null) });
    known.set(run, live);
    source.follow(run, (news) => {
      const before = news.restarted ? [] : live.value.lines;
      live.value = { lines: news.lines.length ? [...before, ...news.lines] : before, steps: news.steps };
    });
  }
  return /** @type {Signal} */ (known.get(run));
}

/**
 * The steps of a run whose weights are available, as a signal: those it keeps, including new ones, and those replayed here.
 * @param {any} run as the source describes it
 * @param {Source} source
 */
export function stepsOf(run, source) {
  if (!steps.has(run.name)) {
    const found = signal(merged(run.steps, run.replayed));
    steps.set(run.name, found);
    if (run.views.training)
      liveOf(run.name, source).subscribe((news) => {
        const now = merged(news.steps ?? run.steps, run.replayed);
        if (now.join() !== found.value.join()) found.value = now;
      });
  }
  return steps.get(run.name);
}

/** The same steps by a run's name, if `stepsOf` was called for it before; else none. @param {string} name */
export function knownSteps(name) {
  return steps.get(name) ?? NONE;
}

/** Set which replayed steps can be shown: a new one may have displaced older ones. @param {any} run @param {number[]} replayed @param {Source} source */
export function setReplayed(run, replayed, source) {
  run.replayed = replayed;
  const kept = liveOf(run.name, source).value.steps ?? run.steps;
  stepsOf(run, source).value = merged(kept, replayed);
}

/** Whether the weights of a checkpoint are available. @param {any} run @param {number[]} known @param {string} checkpoint */
export function atHand(run, known, checkpoint) {
  return !/^\d+$/.test(checkpoint) || Number(checkpoint) === run.step || known.includes(Number(checkpoint));
}

/** @param {number[]} some @param {number[]} others */
export function merged(some, others) {
  return [...new Set([...some, ...others])].sort((a, b) => a - b);
}
