// Which actions a run allows, and why not: { [action]: "" | why not }.

import { describeMissingScope } from "../../scopes.js";
import { isEnded } from "./rows.js";

const FORKABLE_KINDS = new Set(["step", "child", "signal", "approval"]);
export const isForkable = (record) => FORKABLE_KINDS.has(record.kind) && record.number !== null;

export function findObstacles(report, caller) {
  const hasEnded = isEnded(report.state);
  const missingOperate = describeMissingScope(caller, "operate");
  const missingSubmit = describeMissingScope(caller, "submit");
  const endedText = hasEnded ? `the run is ${report.state}` : "";
  return {
    cancel: missingOperate || endedText || (report.is_cancelling ? "it was asked for already" : ""),
    pause: missingOperate || endedText || (report.is_paused ? "it is paused already" : ""),
    resume: missingOperate || endedText || (report.is_paused ? "" : "it is not paused"),
    retry: missingOperate || (!hasEnded ? "it has not ended" : report.state === "completed" ? "it has a result" : report.retry?.is_possible ? "" : report.retry?.message ?? "it cannot be retried"),
    fork: missingOperate || (report.journal.some(isForkable) ? "" : "nothing is recorded that a fork could begin at"),
    settle: missingOperate || (report.advice.some((one) => one.action === "settle") ? "" : "that is not what ended the run"),
    signal: missingSubmit || endedText,
    budget: missingOperate || endedText || (report.budget || report.budget_refusal ? "" : "it was started without a budget, so nothing limits it"),
    approve: missingOperate,
    enable: missingOperate,
  };
}
