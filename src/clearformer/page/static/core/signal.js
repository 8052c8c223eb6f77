// A signal's value in a component.
import { useEffect, useState } from "./html.js";

/**
 * The value of a signal, and the component drawn again when it changes.
 * @template T
 * @param {{value: T, subscribe: (listener: (value: T) => void) => () => void}} signal
 */
export function useSignal(signal) {
  const [value, setValue] = useState(signal.value);
  useEffect(() => signal.subscribe((now) => setValue(() => now)), [signal]);
  return value;
}
