// Recorded values on a page, with a button that copies them.

import { html, useState } from "../../html.js";
import { COPY_FAILED, copyText, showToast, Value } from "../../components.js";
import { formatBytes, formatValue } from "../../format.js";

export function CopyButton({ value, label }) {
  const copy = async () => {
    if (await copyText(typeof value === "function" ? value() : formatValue(value))) showToast("Copied.", "good");
    else showToast(COPY_FAILED, "bad");
  };
  return html`<button type="button" class="plain copy" onClick=${copy} aria-label="copy ${label}" title="copy ${label}">copy</button>`;
}

// A value below a heading; `undefined` shows nothing.
export function NamedValue({ name, value, size, level = "h3", children }) {
  return html`<section class="named">
    <${level}>${name}${size ? html` <span class="faint">${formatBytes(size)}</span>` : null}${value === undefined ? null : html`<${CopyButton} value=${value} label=${name.toLowerCase()} />`}<//>
    ${children ?? html`<${Value} value=${value} label=${name.toLowerCase()} />`}
  </section>`;
}

// Text with commands between backticks.
export const CodeText = ({ children }) => html`${String(children).split("`").map((one, index) => (index % 2 ? html`<code>${one}</code>` : one))}`;

// Content that is only rendered once it is opened.
export function Collapsible({ summary, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${summary}</summary>${isOpen ? children : null}</details>`;
}

export function ErrorDetails({ error }) {
  const name = error.type.split(".").at(-1);
  return html`<div class="error-details">
    <strong>${name}</strong>${error.message ? html`: <span class="pre">${error.message}</span>` : null}
    ${error.traceback ? html`<${Collapsible} summary="Traceback"><${Value} value=${error.traceback} label="traceback" /><//>` : null}
  </div>`;
}
