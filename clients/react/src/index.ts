/** `@turnkeep/react`: what the package offers. */
export { Chat, type ChatFile, type ChatOptions, type ChatState, type Draft } from "./chat.js";
export { Markdown, safeHref } from "./markdown.js";
export { defaultRenderers, type Renderers } from "./renderers.js";
export { TurnkeepChat, type TurnkeepChatProps } from "./TurnkeepChat.js";
export { defaultWords, type Words } from "./words.js";
