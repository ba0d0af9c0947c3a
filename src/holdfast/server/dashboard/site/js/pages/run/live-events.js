// What is in flight, and what models say while they say it, from the events of a run. Pure.
//
// An answer may be begun by one worker and given by another: what the first had said is void then, and the reader has
// seen it. It is kept, marked as taken back.

// answers: { [step]: { step, name, text, takenBack: [text], done } }
export function heard(answers, event) {
  const { kind, step } = event;
  if (kind === "reopened") return {};
  if (step === null || step === undefined) return answers;
  const known = answers[step] ?? { step, name: "", text: "", takenBack: [], done: false };
  const put = (changes) => ({ ...answers, [step]: { ...known, ...changes } });
  switch (kind) {
    case "started":
      return event.name === "model call" || known.text ? put({ name: event.name, done: false }) : answers;
    case "text":
      return put({ text: known.text + event.text, done: false });
    case "retracted":
      return put({ text: "", takenBack: known.text ? [...known.takenBack, known.text] : known.takenBack });
    case "answered":
      return put({ text: event.text, done: true });
    default:
      // The outcome of a step that had said something on its way.
      return step in answers ? put({ done: true }) : answers;
  }
}

const NO_OUTCOME = new Set(["started", "text", "retracted", "delivered", "returned"]);

const MOST_ENDED = 20;

// What has begun: { [step]: { number, name, updated_at, attempt, arguments, run, ended } }. Most steps leave no other trace before
// they have ended; and one that has ended stays until its record is read, so that nothing is gone in between.
export function begun(flights, event) {
  const { kind, step } = event;
  if (kind === "reopened" || kind === "ended") return {};
  if (step === null || step === undefined) return flights;
  if (kind === "started") {
    const { attempt = 1, arguments: given = "", run = null } = event.data;
    return { ...flights, [step]: { number: step, name: event.name, updated_at: event.at, attempt, arguments: given, run, ended: null } };
  }
  if (NO_OUTCOME.has(kind) || (kind === "approval" && event.data.state !== "answered") || !(step in flights)) return flights;
  const kept = { ...flights, [step]: { ...flights[step], ended: event.at } };
  for (const one of Object.values(kept).filter((other) => other.ended).slice(0, -MOST_ENDED)) delete kept[one.number];
  return kept;
}
