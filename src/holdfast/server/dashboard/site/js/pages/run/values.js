// Recorded values on a page, with a button that copies them.

import { html, useState } from "../../html.js";
import { asText, bytes } from "../../format.js";
import { copied, NOT_COPIED, toast, Value } from "../../components.js";

export function Copy({ of, label }) {
  const copy = async () => {
    if (await copied(typeof of === "function" ? of() : asText(of))) toast("Copied.", "good");
    else toast(NOT_COPIED, "bad");
  };
  return html`<button type="button" class="plain copy" onClick=${copy} aria-label="copy ${label}" title="copy ${label}">copy</button>`;
}

// A value below a heading; `undefined` is nothing at all.
export function Named({ name, of, size, level = "h3", children }) {
  return html`<section class="named">
    <${level}>${name}${size ? html` <span class="faint">${bytes(size)}</span>` : null}${of === undefined ? null : html`<${Copy} of=${of} label=${name.toLowerCase()} />`}<//>
    ${children ?? html`<${Value} of=${of} label=${name.toLowerCase()} />`}
  </section>`;
}

// Words in which commands stand between backticks.
export const Words = ({ children }) => html`${String(children).split("`").map((one, index) => (index % 2 ? html`<code>${one}</code>` : one))}`;

// What is only looked at on demand, and not made before.
export function Folded({ summary, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${summary}</summary>${isOpen ? children : null}</details>`;
}

export function Fault({ error }) {
  const name = error.type.split(".").at(-1);
  return html`<div class="fault-told">
    <strong>${name}</strong>${error.message ? html`: <span class="pre">${error.message}</span>` : null}
    ${error.traceback ? html`<${Folded} summary="Traceback"><${Value} of=${error.traceback} label="traceback" /><//>` : null}
  </div>`;
}
