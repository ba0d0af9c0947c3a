// Tabs, in the address, so that one can be linked to.

import { html } from "../../html.js";
import { useKeys } from "../../shortcuts.js";
import { refine } from "../../router.js";

// tabs: [{ name, label, count }]
export function Tabs({ tabs, at }) {
  const move = (by) => {
    const index = tabs.findIndex((one) => one.name === at);
    refine({ tab: tabs[(index + by + tabs.length) % tabs.length].name });
  };
  useKeys({ "]": ["next tab", () => move(1)], "[": ["tab before", () => move(-1)] });
  const press = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    move(by);
    const index = tabs.findIndex((one) => one.name === at);
    event.currentTarget.children[(index + by + tabs.length) % tabs.length].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="parts of this run" onKeyDown=${press}>
    ${tabs.map((one) => html`<button key=${one.name} type="button" role="tab" id="tab-${one.name}" aria-selected=${one.name === at ? "true" : "false"}
      aria-controls=${one.name === at ? "tab" : undefined} tabindex=${one.name === at ? "0" : "-1"} onClick=${() => refine({ tab: one.name })}>
      ${one.label}${one.count ? html` <span class="count ${one.tone ?? ""}">${one.count}</span>` : null}
    </button>`)}
  </div>`;
}
