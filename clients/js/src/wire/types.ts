/** The values of the wire, by the names of the contract. `schema.ts` is made from the OpenAPI document by scripts/web. */
import type { components, operations } from "./schema.js";

type Schemas = components["schemas"];
/** What an operation answers with when all is well. */
type Answer<Name extends keyof operations> = operations[Name] extends {
  responses: { 200: { content: { "application/json": infer Body } } };
}
  ? Body
  : never;

/** What the server leaves to a default when it reads, it always writes. */
export type Part = Schemas["TextPart"] | Schemas["ReasoningPart"] | StepPart | Schemas["FilePart"];
export type TextPart = Schemas["TextPart"];
/** `startedAt` is known of a step that runs, if the server told when it began. */
export type StepPart = Schemas["StepPart"] & { startedAt?: number };
export type FilePart = Schemas["FilePart"];
export type FileRef = Schemas["FileRef"];
export type StoredFile = Schemas["File"];
export type Source = Schemas["Source"];
export type Usage = Required<Schemas["Usage"]>;
export type Message = Omit<Schemas["Message"], "usage"> & { usage: Usage | null };
export type QueuedTurn = Omit<Schemas["QueuedTurn"], "message"> & { message: Message };
export type Conversation = Omit<Schemas["Conversation"], "queued_turns"> & { queued_turns?: QueuedTurn[] };
export type Folder = Schemas["ConversationFolder"];
export type Finish = NonNullable<Message["finish"]>;
export type Reading = NonNullable<FileRef["reading"]>;
export type Turn = Schemas["Turn"];
export type WaitingFor = Schemas["WaitingFor"];
export type Decision = Schemas["Decision"];
export type Steering = Schemas["Steering"];
export type Accepted = Schemas["Accepted"];
export type Agent = Schemas["Agent"];
export type NewAgent = Schemas["NewAgent"];
export type ToolSecret = Schemas["ToolSecret"];
export type NativeTool = Schemas["NativeTool"];
export type McpTools = Schemas["McpTools"];
export type ListedMcpTool = Schemas["ListedMcpTool"];
export type McpConnection = Schemas["McpConnection"];
export type NewMcpConnection = Schemas["NewMcpConnection"];
export type NamedTool = Schemas["NamedTool"];
export type ClientTool = Schemas["ClientTool"];
export type BoxTool = Schemas["BoxTool"];
export type AgentTool = string | NamedTool | HttpTool | ClientTool | BoxTool;
export type HttpTool = Schemas["HttpTool"];
export type McpServer = Schemas["McpServer"];
export type Skill = Schemas["Skill"];
export type Key = Schemas["Key"];
export type NewKey = Schemas["NewKey"];
export type ModelName = Schemas["ModelName"];
export type MonthlyUsage = Omit<Schemas["MonthlyUsage"], "by_source"> & { by_source: Required<Schemas["Messages"]> };
export type LimitUse = Schemas["LimitUse"];
export type UsageRow = Schemas["UsageRow"];
export type UsageTurn = Schemas["UsageTurn"];
export type TurnReplay = Schemas["TurnReplay"];
export type Span = Schemas["Span"];
export type SpanContent = Schemas["SpanContent"];
export type Timeline = Schemas["Timeline"];
export type Workspace = Schemas["Workspace"];
export type WorkspacePatch = Schemas["WorkspacePatch"];
export type KnowledgePage = Answer<"read_page">;
export type PageItem = Answer<"list_pages">["data"][number];
export type Table = Answer<"read_table">;
export type TableRow = Answer<"list_rows">["data"][number];
export type FileText = Answer<"read_text">;
export type Me = Schemas["Me"];
export type User = Schemas["User"];
export type PageSession = Schemas["PageSession"];
export type Invite = Schemas["Invite"];
export type NewInvite = Schemas["NewInvite"];
export type Feedback = Schemas["Feedback"];
export type NewFeedback = Schemas["NewFeedback"];
export type FeedbackItem = Schemas["FeedbackItem"];
export type Rating = NewFeedback["rating"];
export type Share = Schemas["Share"];
export type NewShare = Schemas["NewShare"];
export type SharedConversation = Schemas["SharedConversation"];
export type SharedMessage = Schemas["SharedMessage"];
export type Webhook = Schemas["Webhook"];
export type WebhookDelivery = Schemas["WebhookDelivery"];
export type NewWebhook = Schemas["NewWebhook"];
export type WebhookEvent = NewWebhook["events"][number];
export type SigninWays = Schemas["SigninWays"];
export type SignedOut = Schemas["SignedOut"];
export type NewTurn = Schemas["NewTurn"];
export type Again = Schemas["Again"];
export type Edit = Schemas["Edit"];
export type IfBusy = NonNullable<NewTurn["if_busy"]>;

export interface ListPage<Item> {
  data: Item[];
  next_cursor: string | null;
}

export type NewConversation = Schemas["NewConversation"];
export type ConversationPatch = Schemas["ConversationPatch"];
export type ClientResult = Schemas["ClientResult"];
export type NewFile = Schemas["NewFile"];
export type PendingUpload = Schemas["PendingUpload"];
export type ConversationQuery = NonNullable<operations["list_conversations"]["parameters"]["query"]>;
export type MessageQuery = NonNullable<operations["list_messages"]["parameters"]["query"]>;
