/**
 * `@turnkeep/client/ag-ui`: an agent of AG-UI that can attach to its thread again. It needs `@ag-ui/client`, from 0.0.59 on,
 * which the application installs.
 */
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";

/** `HttpAgent`, whose `connectAgent()` gets the messages of the thread and the events of the turn that runs in it. */
export class TurnkeepAgent extends HttpAgent {
  protected override connect({ threadId, protocolVersion }: { threadId: string; protocolVersion?: string }): ReturnType<HttpAgent["run"]> {
    const version = protocolVersion ? `?protocol_version=${encodeURIComponent(protocolVersion)}` : "";
    const url = `${this.url.split("?")[0]}/threads/${encodeURIComponent(threadId)}/connect${version}`;
    const headers = { ...this.headers, accept: "text/event-stream" };
    const { signal } = this.abortController;
    const attach = this.fetch ?? ((...request: Parameters<typeof fetch>) => fetch(...request));
    return transformHttpEventStream(runHttpRequest(() => attach(url, { headers, signal })));
  }
}
