// A notebook's kernel as a source, by anywidget's protocol: traits for the view, messages for views inside it.
import { decode } from "../core/wire.js";
import { follows, quick, Refused } from "./source.js";

const PAUSE = 2000; // milliseconds between two requests for a run's newest metrics

/** Copy the bytes of a trait or a message to a buffer of their own. @param {DataView | ArrayBuffer | Uint8Array} bytes @returns {ArrayBuffer} */
export function bufferOf(bytes) {
  if (bytes instanceof ArrayBuffer) return bytes;
  return /** @type {ArrayBuffer} */ (bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
}

export class Kernel {
  /** @param {any} model anywidget's */
  constructor(model) {
    this.model = model;
    this.gone = "the notebook's kernel does not answer: is it still running?";
    this.hasOthers = false;
    /** @type {string[]} */
    this.fixed = [];
    this.within = follows;
    this.progress = quick.progress;
    this.end = quick.end;
    this.replay = quick.replay;
    this.n = 0;
    this.name = crypto.getRandomValues(new Uint32Array(2)).join("-");
    /** @type {Map<string, {resolve: (bytes: any) => void, reject: (error: Error) => void}>} */
    this.waiting = new Map();
    this.hear = this.hear.bind(this);
    model.on("msg:custom", this.hear);
  }

  /** Stop listening. */
  close() {
    this.model.off("msg:custom", this.hear);
  }

  /** @param {any} message @param {DataView[]} buffers */
  hear(message, buffers) {
    const asked = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error) asked?.reject(new Refused(message.error));
    else asked?.resolve(bufferOf(buffers[0]));
  }

  /** @param {any} question @returns {Promise<ArrayBuffer>} */
  question(question) {
    const id = `${this.name} ${this.n++}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.model.send({ id, ...question });
    });
  }

  /** @param {string} view @param {any} selection */
  async ask(view, selection) {
    return decode(await this.question({ kind: "view", view, selection }));
  }

  /** @param {string} view @param {any} selection @returns {Promise<import("./source.js").Table>} */
  async table(view, selection) {
    return (await this.ask(view, selection)).table;
  }

  /** @param {string} view @param {string} picture @param {any} selection */
  async picture(view, picture, selection) {
    const type = picture === "svg" ? "image/svg+xml" : "image/png";
    return new Blob([await this.question({ kind: "picture", view, picture, selection })], { type });
  }

  /** @param {string} run @param {(news: {lines: any[], restarted: boolean, steps: number[] | null}) => void} tell */
  follow(run, tell) {
    let cursor = 0;
    let stopped = false;
    const again = async () => {
      const news = decode(await this.question({ kind: "metrics", run, cursor }));
      if (stopped) return;
      cursor = news.cursor;
      if (news.lines.length || news.restarted) tell(news);
      setTimeout(() => stopped || again().catch(() => {}), PAUSE);
    };
    again().catch(() => {});
    return () => {
      stopped = true;
    };
  }
}
