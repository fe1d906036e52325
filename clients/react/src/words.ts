/** Every text of the component. An application gives its own for another language. */
export const defaultWords = {
  chat: "Chat",
  write: "Write a message",
  send: "Send",
  stop: "Stop",
  attach: "Attach files",
  remove: (name: string) => `Remove ${name}`,
  loading: "Loading…",
  missing: "This conversation does not exist any more.",
  older: "Earlier messages",
  you: "You",
  assistant: "Assistant",
  thoughts: "Thoughts",
  sources: "Sources",
  waiting: "…",
  queued: "Waits for the answer before it.",
  sending: "Is being sent…",
  again: "Send again",
  reconnecting: "The connection is lost. Trying again…",
  stopped: "Stopped.",
  approval: "May this be done?",
  clientTools: "The answer waits for another application.",
  allow: "Allow",
  deny: "Deny",
  step: { running: "runs", succeeded: "done", failed: "failed" } as Readonly<Record<string, string>>,
};

export type Words = typeof defaultWords;
