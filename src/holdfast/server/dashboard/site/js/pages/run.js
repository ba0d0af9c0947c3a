// One run: what it did, what it cost, and what to do now.

import { html, useEffect, useState } from "../html.js";
import { Empty, Note, ProblemNote } from "../components.js";
import { href, refine } from "../router.js";
import { Conversation } from "./run/conversation.js";
import { DIALOGS } from "./run/dialogs.js";
import { Events } from "./run/events.js";
import { Tree } from "./run/tree-view.js";
import { Head } from "./run/header.js";
import { InAndOut } from "./run/input-output.js";
import { useStory } from "./run/report-reader.js";
import { Plan } from "./run/plan.js";
import { Questions } from "./run/approvals.js";
import { Tabs } from "./run/tabs.js";
import { Timeline } from "./run/timeline.js";

export function RunPage({ arg, query, who }) {
  const { story, problem, answers, flights, events, again } = useStory(arg);
  const [dialog, setDialog] = useState(null); // { name, record, of: the story that it is about, which may be that of a child }
  useEffect(() => {
    // "step 5 in the timeline": which row that is, is known here.
    if (!query.find || !story) return;
    const found = story.journal.find((one) => String(one.number) === query.find && one.kind !== "timer");
    refine({ find: null, row: found ? `r${found.seq}` : null });
  }, [query.find, story === null]);
  if (!story) {
    if (!problem) return html`<p class="faint" role="status">The run is being read.</p>`;
    return problem.status === 404
      ? html`<header><h1>${arg}</h1></header><${Empty}><p>There is no such run. It may have been deleted, or belong to another namespace.</p><p><a href=${href("runs")}>All runs</a></p><//>`
      : html`<${ProblemNote} problem=${problem} again=${again} />`;
  }
  const open = (name, record = null, of = story) => (name === "approve" ? refine({ tab: "questions" }) : setDialog({ name, record, of }));
  const tabs = tabsOf(story);
  const tab = tabs.some((one) => one.name === query.tab) ? query.tab : "timeline";
  const Asked = dialog ? DIALOGS[dialog.name] : null;
  return html`<div class="run-page">
    <${Head} story=${story} who=${who} open=${open} />
    ${problem ? html`<${Note} tone="warn"><span role="status">${problem.message} What is shown may be old.</span><//>` : null}
    <${Tabs} tabs=${tabs} at=${tab} />
    <div id="tab" role="tabpanel" aria-labelledby="tab-${tab}">
      ${tab === "timeline" ? html`<${Timeline} story=${story} flights=${flights} who=${who} query=${query} open=${open} />` : null}
      ${tab === "conversation" ? html`<${Conversation} story=${story} answers=${answers} who=${who} />` : null}
      ${tab === "questions" ? html`<${Questions} story=${story} who=${who} />` : null}
      ${tab === "plan" ? html`<${Plan} plan=${story.plan} />` : null}
      ${tab === "tree" ? html`<${Tree} story=${story} />` : null}
      ${tab === "data" ? html`<${InAndOut} story=${story} />` : null}
      ${tab === "events" ? html`<${Events} story=${story} events=${events} />` : null}
    </div>
    ${Asked ? html`<${Asked} story=${dialog.of.id === story.id ? story : dialog.of} record=${dialog.record} onClose=${() => setDialog(null)} />` : null}
  </div>`;
}

// Those that have something to show.
function tabsOf(story) {
  const open = story.approvals.filter((one) => one.state === "open").length;
  const done = story.plan.filter((one) => one.status === "done").length;
  return [
    { name: "timeline", label: "Timeline" },
    ...(story.is_agent ? [{ name: "conversation", label: "Conversation" }] : []),
    ...(story.approvals.length ? [{ name: "questions", label: "Approvals", count: open, tone: "warn" }] : []),
    ...(story.plan.length ? [{ name: "plan", label: "Plan", count: `${done}/${story.plan.length}` }] : []),
    ...(story.related_runs.length || story.parent ? [{ name: "tree", label: "Tree", count: story.related_runs.length }] : []),
    { name: "data", label: "Input & output", count: story.pending_signals.length, tone: "warn" },
    { name: "events", label: "Events" },
  ];
}
