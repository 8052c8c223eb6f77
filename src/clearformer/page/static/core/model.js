// The page's own models: what anywidget is in a notebook, the server is here.
import { decode } from "./wire.js";

/** A view's model: traits that can be listened to, and answers that replace those of earlier questions. */
export class PageModel {
  /**
   * @param {string} name the view's
   * @param {(selection: any) => void} onSelect what happens to a selection that the view saves
   */
  constructor(name, onSelect) {
    this.name = name;
    this.onSelect = onSelect;
    /** @type {Record<string, any>} */
    this.values = { selection: null, found: null, answer: null, error: "", busy: false, progress: "", ended: false };
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
    /** @type {AbortController | null} */
    this.asking = null;
  }

  /** The model of another view of the same selection, for what is opened beside this one. @param {string} name */
  beside(name) {
    return new PageModel(name, this.onSelect);
  }

  /** @param {string} name */
  get(name) {
    return this.values[name];
  }

  /** @param {string} name @param {any} value */
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const listener of [...(this.listeners.get(`change:${name}`) ?? [])]) listener();
  }

  save_changes() {
    this.onSelect(this.values.selection);
  }

  /** @param {string} event @param {() => void} listener */
  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event)?.add(listener);
  }

  /** @param {string} event @param {() => void} listener */
  off(event, listener) {
    this.listeners.get(event)?.delete(listener);
  }

  /**
   * Ask the server for the view of a selection; an earlier question that is still open is dropped.
   * @param {any} selection
   */
  async ask(selection) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.set("busy", true);
    this.set("ended", false);
    const stop = followProgress(this.name, (words) => this.set("progress", words));
    try {
      const response = await post(`api/view/${this.name}`, selection, asking.signal);
      if (!response.ok) {
        this.set("error", await complaint(response));
      } else {
        const answer = decode(await response.arrayBuffer());
        this.set("answer", answer);
        this.set("found", answer.found);
        this.set("error", "");
      }
    } catch (error) {
      if (!asking.signal.aborted) this.set("error", "the server does not answer: is `clearformer look` still running?");
    }
    stop();
    if (this.asking === asking) this.set("busy", false);
  }

  /** End what the server computes for this view. */
  end() {
    this.set("ended", true);
    return post(`api/end/${this.name}`, null);
  }
}

const LOOK_EVERY = 400; // milliseconds

/**
 * Hear how far a computation that takes long is, until it is no longer followed; of a quick one nothing is told.
 * @param {string} name
 * @param {(words: string) => void} tell
 */
export function followProgress(name, tell) {
  const look = async () => {
    const response = await fetch(`api/progress/${name}`).catch(() => null);
    const told = response?.ok ? await response.json() : null;
    if (timer && told) tell(told.total ? `${told.done} of ${told.total}` : "waiting for its turn");
  };
  let timer = setInterval(look, LOOK_EVERY);
  return () => {
    clearInterval(timer);
    timer = 0;
    tell("");
  };
}

/**
 * Have the weights after a step made again. Throws an Error with the server's words where that cannot be.
 * @param {any} selection of which the run and the checkpoint are meant
 * @param {(words: string) => void} tell how far it is
 */
export async function replay(selection, tell) {
  const stop = followProgress("replay", tell);
  try {
    const response = await post("api/replay/replay", selection);
    if (!response.ok) throw new Error(await complaint(response));
  } finally {
    stop();
  }
}

/**
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} [signal]
 */
export function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/**
 * What a refused question was answered with, in one line.
 * @param {Response} response
 */
export async function complaint(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text.trim() || `the server answered ${response.status}`;
  }
}
