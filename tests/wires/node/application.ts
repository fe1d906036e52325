// An application in TypeScript that uses the package. client.test.mjs checks its types, and does not run it.
import { HttpAgent } from "@ag-ui/client";
import { newTurn, reduceTurn, Turnkeep, type TurnDisplay } from "@turnkeep/client";
import { TurnkeepAgent } from "@turnkeep/client/ag-ui";

const turnkeep = new Turnkeep({ baseUrl: "http://localhost:8787", token: async () => "a token" });

export async function title(conversationId: string): Promise<string | null> {
  const { title } = await turnkeep.conversations.get(conversationId);
  const { content } = await turnkeep.request("GET", "/v1/pages/{page_id}", { params: { page_id: "page_1" } });
  return title ?? content;
}

export async function shown(turnId: string): Promise<TurnDisplay> {
  let turn = newTurn(turnId);
  for await (const event of turnkeep.turns.follow(turnId)) turn = reduceTurn(turn, event);
  return turn;
}

export const agent: HttpAgent = new TurnkeepAgent({ url: "http://localhost:8787/ag-ui", threadId: "ticket-12" });

// @ts-expect-error There is no such path.
void turnkeep.request("GET", "/v1/nothing");
// @ts-expect-error The page has no name.
void turnkeep.request("GET", "/v1/pages/{page_id}");
