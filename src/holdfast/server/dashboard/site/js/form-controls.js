// Forms that are written by hand: fields that tell what is wrong with them, and a way to send them one time at a time.

import { html, useState } from "./html.js";

// A label, what is typed, and below it what is wrong with that, or a hint. Whatever else is given is the input's own.
export function Entry({ label, fault, hint, set, long = false, ...more }) {
  const common = { ...more, class: fault ? "invalid" : "", "aria-invalid": fault ? "true" : undefined, onInput: (event) => set(event.target.value) };
  return html`<label class="field">${label}${long ? html`<textarea ...${common}></textarea>` : html`<input ...${common} />`}${
    fault ? html`<span class="fault" role="alert">${fault}</span>` : hint ? html`<span class="hint">${hint}</span>` : null}</label>`;
}

// { faults, problem, busy, onSubmit }, for a form.
//   check: () => { [name]: what is wrong with that field }; nothing is sent unless that is empty
//   send: async () => what sends it, and closes the dialog; of what the server refuses, the fields are told as well
export function useEntries(check, send) {
  const [told, setTold] = useState({ faults: {}, problem: null, busy: false });
  const onSubmit = async (event) => {
    event.preventDefault();
    if (told.busy) return;
    const faults = check();
    const fits = !Object.keys(faults).length;
    setTold({ faults, problem: null, busy: fits });
    if (!fits) return;
    try {
      await send();
      setTold({ faults: {}, problem: null, busy: false });
    } catch (problem) {
      const at = (problem.told?.violations ?? []).map(({ path, message }) => [path.split(".")[0], message]);
      setTold({ faults: Object.fromEntries(at), problem, busy: false });
    }
  };
  return { ...told, onSubmit };
}

export const isWhole = (text) => /^[1-9]\d*$/.test(text.trim());

// "a, b" as ["a", "b"].
export const listed = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
