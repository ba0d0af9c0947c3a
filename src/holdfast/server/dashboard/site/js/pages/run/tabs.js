// Tabs. The current tab is in the address, so that links to it work.

import { html } from "../../html.js";
import { updateQuery } from "../../router.js";
import { useShortcuts } from "../../shortcuts.js";

// tabs: [{ name, label, count }]
export function Tabs({ tabs, at }) {
  const move = (offset) => {
    const index = tabs.findIndex((one) => one.name === at);
    updateQuery({ tab: tabs[(index + offset + tabs.length) % tabs.length].name });
  };
  useShortcuts({ "]": ["next tab", () => move(1)], "[": ["tab before", () => move(-1)] });
  const onKeyDown = (event) => {
    const offset = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!offset) return;
    event.preventDefault();
    move(offset);
    const index = tabs.findIndex((one) => one.name === at);
    event.currentTarget.children[(index + offset + tabs.length) % tabs.length].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="parts of this run" onKeyDown=${onKeyDown}>
    ${tabs.map((one) => html`<button key=${one.name} type="button" role="tab" id="tab-${one.name}" aria-selected=${one.name === at ? "true" : "false"}
      aria-controls=${one.name === at ? "tab" : undefined} tabindex=${one.name === at ? "0" : "-1"} onClick=${() => updateQuery({ tab: one.name })}>
      ${one.label}${one.count ? html` <span class="count ${one.tone ?? ""}">${one.count}</span>` : null}
    </button>`)}
  </div>`;
}
