// What may be done with a run, and why not: { [act]: "" | why not }.

import { lacks } from "../../scopes.js";
import { isEnded } from "./rows.js";

const FORKABLE = new Set(["step", "child", "signal", "approval"]);
export const isForkable = (record) => FORKABLE.has(record.kind) && record.number !== null;

export function may(story, who) {
  const over = isEnded(story.state);
  const operate = lacks(who, "operate");
  const submit = lacks(who, "submit");
  const ended = over ? `the run is ${story.state}` : "";
  return {
    cancel: operate || ended || (story.is_cancelling ? "it was asked for already" : ""),
    pause: operate || ended || (story.is_paused ? "it is paused already" : ""),
    resume: operate || ended || (story.is_paused ? "" : "it is not paused"),
    retry: operate || (!over ? "it has not ended" : story.state === "completed" ? "it has a result" : story.retry?.is_possible ? "" : story.retry?.message ?? "it cannot be retried"),
    fork: operate || (story.journal.some(isForkable) ? "" : "nothing is recorded that a fork could begin at"),
    settle: operate || (story.advice.some((one) => one.action === "settle") ? "" : "that is not what ended the run"),
    signal: submit || ended,
    budget: operate || ended || (story.budget || story.budget_refusal ? "" : "it was started without a budget, so nothing limits it"),
    approve: operate,
    enable: operate,
  };
}
