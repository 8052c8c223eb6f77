export default class uPlot {
  constructor(options: any, data: any[], element: Element);
  setData(data: any[]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
