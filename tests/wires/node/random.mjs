// Turns of anything, for the tests of clients: words, reasoning, tools, resets, failures, pauses, approvals and tools of the page.

/** How many turns a test makes, and where its numbers begin. */
export const turnsOf = (usual) => Number(process.env.TURNKEEP_RANDOM_TURNS ?? usual);
export const SEED = Number(process.env.TURNKEEP_RANDOM_SEED ?? 1);

/** Numbers that look random and are the same for the same seed. */
export function generator(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const TOOLS = [
  { call: "weather" }, { call: "weather", args: { place: "Nowhere" } }, { call: "library" }, { call: "pay" },
  { call: "locate" }, { call: "no_such_tool" },
];

/** What the model says in one turn. With the ending `pause` its last word is "One ", and the turn must be stopped. */
export function randomRounds(random) {
  const round = () => {
    const items = [];
    if (random(3) === 0) items.push({ think: "Hm. " });
    if (random(5) === 0) items.push("Wrong. ", { pause: 0.05 }, { restart: true });
    if (random(4) > 0) items.push("Some ", "words. ");
    if (random(4) === 0) items.push({ think: "And more. " });
    return items;
  };
  const rounds = [];
  for (let left = random(3); left > 0; left--) {
    const calls = Array.from({ length: 1 + random(2) }, () => TOOLS[random(TOOLS.length)]);
    rounds.push([...round(), ...calls]);
  }
  const ending = ["failure", "pause"][random(8)] ?? "words";
  if (ending === "failure") rounds.push([...round(), { fail: "The model broke." }]);
  else if (ending === "pause") rounds.push(["One ", { pause: 60 }]);
  else rounds.push([...round(), "The end."]);
  return { rounds, ending };
}
