/** The state of the page: a new conversation, the list of conversations, and routes. */
import { describe, expect, test } from "vitest";

import type { Conversation, OutgoingMessage } from "@turnkeep/client";
import { byAge, hitOf, newConversationList, reduceConversationList, snippetPieces } from "../src/state/conversationList";
import { placesOf } from "../src/state/find";
import { pathOf, routeOf } from "../src/state/route";
import { hasAnswersElsewhere } from "../src/state/selectors";
import { NEW, newState, reduce } from "../src/state/state";

const conversation = (id: string, more: Partial<Conversation> = {}): Conversation => ({
  id,
  workspace_id: "ws_1",
  user: { id: "user_1", external_id: "ann" },
  user_id: "user_1",
  kind: "chat",
  agent_id: null,
  model: null,
  workflow_id: null,
  external_id: null,
  title: id,
  preview: null,
  message_count: 0,
  turn_count: 0,
  head_turn_id: null,
  running_turn: null,
  metadata: {},
  created_at: 1,
  updated_at: 1,
  ...more,
});

const outgoing = (key: string): OutgoingMessage => ({
  key,
  text: `text of ${key}`,
  attachments: [],
  agent_id: null,
  model: null,
  if_busy: "enqueue",
  status: "sending",
  turn_id: null,
  error: null,
  created_at: 1,
});

test("a new conversation moves to its id with its outgoing messages", () => {
  let state = reduce(newState(routeOf("/")), { type: "outbox/added", id: NEW, outgoing: outgoing("k") });
  state = reduce(state, { type: "thread/created", id: "conv_2" });
  expect(state.threads[NEW]).toBeUndefined();
  expect(state.threads["conv_2"]?.outbox).toHaveLength(1);
});

describe("the list", () => {
  const listed = (...ids: string[]) =>
    reduceConversationList(newConversationList, { type: "conversations/loaded", query: "", page: { data: ids.map((id, at) => conversation(id, { updated_at: 100 - at })), next_cursor: "more" } });

  test("the response to an earlier search is ignored", () => {
    const list = reduceConversationList(newConversationList, { type: "conversations/searched", query: "new" });
    expect(reduceConversationList(list, { type: "conversations/loaded", query: "old", page: { data: [conversation("a")], next_cursor: null } })).toBe(list);
  });

  test("a deleted conversation can be restored to its place", () => {
    const removed = reduceConversationList(listed("a", "b", "c"), { type: "conversations/removed", id: "b" });
    expect(removed.items.map((one) => one.id)).toEqual(["a", "c"]);
    const restored = reduceConversationList(removed, { type: "conversations/restored", conversation: conversation("b", { updated_at: 99 }) });
    expect(restored.items.map((one) => one.id)).toEqual(["a", "b", "c"]);
    expect(restored.removed).toBeNull();
  });

  test("a refresh keeps the pages that were loaded after the first", () => {
    const fresh = { data: [conversation("d", { updated_at: 200 }), conversation("a", { updated_at: 100 })], next_cursor: "c" };
    const list = reduceConversationList(listed("a", "b", "c"), { type: "conversations/refreshed", query: "", page: fresh, known: new Set(["a", "b", "c"]) });
    expect(list.items.map((one) => one.id)).toEqual(["d", "a", "b", "c"]);
    expect(list.cursor).toBe("more");
  });

  test("a refresh keeps a conversation that was begun while its request was under way", () => {
    const begun = reduceConversationList(listed("a", "b"), { type: "conversations/changed", conversation: conversation("new", { updated_at: 300 }) });
    const page = { data: [conversation("a", { updated_at: 100 })], next_cursor: null };
    const list = reduceConversationList(begun, { type: "conversations/refreshed", query: "", page, known: new Set(["a", "b"]) });
    expect(list.items.map((one) => one.id)).toEqual(["new", "a"]);
  });

  test("an answer that has ended is no longer being written, unless the next one is", () => {
    const running = { id: "t1", events_url: "/v1/turns/t1/events" };
    const page = { data: [conversation("a", { running_turn: running }), conversation("b", { running_turn: { ...running, id: "t2" } })], next_cursor: null };
    const before = reduceConversationList(newConversationList, { type: "conversations/loaded", query: "", page });
    const after = reduceConversationList(before, { type: "conversations/ended", id: "a", turn_id: "t1" });
    expect(after.items.map((one) => one.running_turn?.id ?? null)).toEqual([null, "t2"]);
    expect(reduceConversationList(after, { type: "conversations/ended", id: "b", turn_id: "t1" })).toBe(after);
  });

  test("tells whether an answer is written out of view, and not waiting for a person", () => {
    const state = newState({ page: "chat", conversationId: "a" });
    const writing = (id: string, more: object = {}) => ({ ...state, conversations: { ...newConversationList, items: [conversation(id, { running_turn: { id: "t", events_url: "", ...more } })] } });
    expect(hasAnswersElsewhere(writing("a"))).toBe(false);
    expect(hasAnswersElsewhere(writing("b"))).toBe(true);
    expect(hasAnswersElsewhere(writing("b", { waiting_for: "approval" }))).toBe(false);
  });

  test("a hit of a search leads to its passage, unless only a title that was changed has the words", () => {
    const snippet = "…the capital of **Mongolia** is a city in **Mongolia**…";
    expect(hitOf(conversation("a", { snippet }), "mongol")).toEqual({ quote: "the capital of Mongolia is a city in Mongolia", found: "Mongolia" });
    expect(hitOf(conversation("a"), "")).toBeUndefined();
    expect(hitOf(conversation("a", { title: "My trip", preview: "Hello", snippet: "My **trip**" }), "trip")).toBeUndefined();
    expect(hitOf(conversation("a", { title: "My trip", preview: "My trip to Bern", snippet: "My **trip**" }), "trip")).toEqual({ quote: "My trip", found: "trip" });
  });

  test("is grouped by the calendar, not by hours", () => {
    const now = new Date(2026, 4, 10, 0, 30);
    const at = (date: Date) => conversation(String(date.getTime()), { updated_at: date.getTime() });
    const groups = byAge([at(new Date(2026, 4, 10, 0, 10)), at(new Date(2026, 4, 9, 23, 50)), at(new Date(2026, 4, 5)), at(new Date(2026, 3, 20)), at(new Date(2025, 0, 1))], now);
    expect(groups.map((group) => group.age)).toEqual(["today", "yesterday", "week", "month", "older"]);
  });

  test("matches in a snippet are between two stars", () => {
    expect(snippetPieces("…the **Cat** sat**s**", "cat s")).toEqual([
      { text: "…the ", isMatch: false },
      { text: "Cat", isMatch: true },
      { text: " sat", isMatch: false },
      { text: "s", isMatch: true },
    ]);
  });

  test.each([
    ["The **capital** of **Mongolia** is", "mongol", ["Mongolia"]],
    ["cut** and **Mongolia**, a **state", "mongol", ["Mongolia"]],
    ["is ***Ulaanbaatar***.", "ulaan", ["*Ulaanbaatar"]],
    ["**东京**都", "东京", ["东京"]],
    ["**ﬁne** words", "fine", ["ﬁne"]],
  ])("bold text in %s is no match for %s", (snippet, query, found) => {
    expect(snippetPieces(snippet, query).flatMap((piece) => (piece.isMatch ? [piece.text] : []))).toEqual(found);
  });
});

test("addresses become routes and back", () => {
  const id = `conv_${"a".repeat(32)}`;
  for (const path of ["/", `/c/${id}`, "/settings/usage", "/settings/keys", `/turns/${id.replace("conv", "turn")}`]) expect(pathOf(routeOf(path))).toBe(path);
  expect(routeOf("/settings")).toEqual({ page: "settings", section: "usage" });
  for (const path of ["/nonsense", "/c/nonsense", "/settings/nonsense", "/turns/nonsense", "/c"]) {
    expect(routeOf(path)).toEqual({ page: "unknown", path });
    expect(pathOf(routeOf(path))).toBe(path);
  }
});

test("an error is shown until it is dismissed; of other notices the newest three, and each text once", () => {
  const show = (state: ReturnType<typeof newState>, id: number, kind: "info" | "error", text = `${id}`) => reduce(state, { type: "notice", notice: { id, text, kind } });
  let state = show(newState(routeOf("/")), 1, "error");
  for (const id of [2, 3, 4, 5]) state = show(state, id, "info");
  state = show(state, 6, "info", "5");
  expect(state.notices.map((one) => one.id)).toEqual([1, 3, 4, 6]);
  for (const id of [7, 8, 9, 10]) state = show(state, id, "error");
  expect(state.notices.map((one) => one.id)).toEqual([1, 7, 8, 9, 10]);
  expect(reduce(state, { type: "notice/gone", id: 1 }).notices.map((one) => one.id)).toEqual([7, 8, 9, 10]);
});

test("words are found in any case and without their accents, each place once", () => {
  expect(placesOf("Zürich, ZURICH, zü", "zurich")).toEqual([0, 8]);
  expect(placesOf("aaaa", "aa")).toEqual([0, 2]);
  expect(placesOf("🙂 Straße", "straße")).toEqual([3]);
  expect(placesOf("anything", "")).toEqual([]);
});

test("a conversation is in the groups of its pin and its folder", () => {
  const loaded = reduceConversationList(newConversationList, { type: "conversations/loaded", query: "", page: { data: [conversation("a"), conversation("b")], next_cursor: null } });
  const ids = (all: readonly Conversation[]) => all.map((one) => one.id);
  const pinned = reduceConversationList(loaded, { type: "conversations/changed", conversation: conversation("a", { is_pinned: true, folder: "F" }) });
  expect([ids(pinned.items), ids(pinned.pinned), ids(pinned.filed), pinned.folders.map((one) => one.name)]).toEqual([["b"], ["a"], ["a"], ["F"]]);
  const removed = reduceConversationList(pinned, { type: "conversations/removed", id: "a" });
  expect([ids(removed.pinned), ids(removed.filed), removed.removed?.id]).toEqual([[], [], "a"]);
  const back = reduceConversationList(removed, { type: "conversations/restored", conversation: conversation("a") });
  expect([ids(back.items), ids(back.pinned), back.removed]).toEqual([["b", "a"], [], null]);
});
