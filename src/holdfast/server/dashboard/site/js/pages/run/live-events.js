// Steps in flight, and answers of models while they are streamed, from the events of a run. Pure.
//
// One worker may begin an answer, and another one complete it. What the first one streamed is then void, but was seen: it
// stays, marked as retracted.

// answers: { [step]: { step, name, text, retracted: [text], done } }
export function applyAnswerEvent(answers, event) {
  const { kind, step } = event;
  if (kind === "reopened") return {};
  if (step === null || step === undefined) return answers;
  const known = answers[step] ?? { step, name: "", text: "", retracted: [], done: false };
  const update = (changes) => ({ ...answers, [step]: { ...known, ...changes } });
  switch (kind) {
    case "started":
      return event.name === "model call" || known.text ? update({ name: event.name, done: false }) : answers;
    case "text":
      return update({ text: known.text + event.text, done: false });
    case "retracted":
      return update({ text: "", retracted: known.text ? [...known.retracted, known.text] : known.retracted });
    case "answered":
      return update({ text: event.text, done: true });
    default:
      // The outcome of a step that had streamed text.
      return step in answers ? update({ done: true }) : answers;
  }
}

const NON_OUTCOME_KINDS = new Set(["started", "text", "retracted", "delivered", "returned"]);

const MAX_ENDED = 20;

// Steps that began: { [step]: { number, name, updated_at, attempt, arguments, run, ended } }. Most steps leave no other
// trace before they end. A step that has ended stays until its record is read, so that nothing is missing in between.
export function applyStepEvent(inFlight, event) {
  const { kind, step } = event;
  if (kind === "reopened" || kind === "ended") return {};
  if (step === null || step === undefined) return inFlight;
  if (kind === "started") {
    const { attempt = 1, arguments: argumentsText = "", run = null } = event.data;
    return { ...inFlight, [step]: { number: step, name: event.name, updated_at: event.at, attempt, arguments: argumentsText, run, ended: null } };
  }
  if (NON_OUTCOME_KINDS.has(kind) || (kind === "approval" && event.data.state !== "answered") || !(step in inFlight)) return inFlight;
  const updated = { ...inFlight, [step]: { ...inFlight[step], ended: event.at } };
  for (const one of Object.values(updated).filter((other) => other.ended).slice(0, -MAX_ENDED)) delete updated[one.number];
  return updated;
}
