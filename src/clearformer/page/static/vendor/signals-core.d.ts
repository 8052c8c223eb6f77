export function signal<T>(value: T): { value: T; subscribe(listener: (value: T) => void): () => void };
