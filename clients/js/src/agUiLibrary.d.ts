/** The part of `@ag-ui/client` that `agUi.ts` uses, so that the package can be built without it. Applications have the real one. */
declare module "@ag-ui/client" {
  interface Events {
    subscribe(...observers: unknown[]): unknown;
  }

  export class HttpAgent {
    url: string;
    headers: Record<string, string>;
    /** Not there in older versions. */
    fetch?: (url: string, init: RequestInit) => Promise<Response>;
    abortController: AbortController;
    run(input: unknown): Events;
    protected connect(input: unknown): Events;
  }

  export const runHttpRequest: (fetchResponse: () => Promise<Response>) => Events;
  export const transformHttpEventStream: (source: Events) => Events;
}
