// Turns a JSON schema into fields that a person can fill in, and their contents into a value. Pure: tests run it without
// a browser; `forms.js` shows it.
//
// A *field* describes an input. A *draft* is the content of a field while a person types, which need not be a value yet:
// texts for texts and numbers, the number of the choice, a list of drafts, an object of drafts.
//   { kind, label, hint, required, nullable, ... }
//     text     { isLong, format: "date" | "date-time" | "time" | "email" | "", min, max }
//              Only the server checks a pattern: in a browser it could take forever.
//     number   { isInteger, min, max, exclusiveMin, exclusiveMax }
//     boolean  { isOpen }: it may be left unset
//     choice   { choices: values }
//     list     { item: field, min, max }
//     object   { fields: [[name, field]], optional }
//     json     a value that no other field fits, written as JSON
//     any      any value: JSON, or else a text

const MAX_DEPTH = 6; // a recursive type would never end
const LONG_TEXT_LENGTH = 200;

export function buildField(schema, { required = true, name = "" } = {}) {
  return buildNestedField(schema, { root: schema, required, name, depth: 0 });
}

// A field for any value, which is written as JSON.
export const buildJsonField = (label) => ({ kind: "json", label, hint: "", required: true, nullable: false });

// Fields for parameters with names only.
export const buildFieldsFromNames = (names) => ({
  kind: "object", label: "", hint: "", required: true, nullable: false, optional: false,
  fields: names.map((name) => [name, { kind: "any", label: name, hint: "", required: false, nullable: false }]),
});

// Fields for the inputs of a workflow, by the JSON schema that its workers announce. A required text must not be empty:
// a person would have forgotten it. A value that may be a text or something else need not be written as JSON. `*args`
// cannot be sent, because it has no name.
export function buildFieldsFromSchema(schema) {
  const named = Object.entries(schema.properties ?? {}).filter(([name]) => !/^\*[^*]/.test(name));
  const requiredNames = new Set(schema.required ?? []);
  const fields = named.map(([name, inner]) => {
    const field = buildNestedField({ ...inner, title: name }, { root: schema, required: requiredNames.has(name), name, depth: 1 });
    const alternatives = inner.anyOf ?? inner.oneOf ?? [];
    if (field.kind === "json" && alternatives.some((one) => resolveSchema(one, schema, 0).schema.type === "string")) return [name, { ...field, kind: "any" }];
    return [name, field.kind === "text" && field.required && !field.nullable ? { ...field, min: Math.max(1, field.min) } : field];
  });
  return { kind: "object", label: "", hint: "", required: true, nullable: false, optional: false, fields };
}

// Inputs as they are sent: those of `**kwargs` by their own names.
export const flattenInputs = (value) =>
  Object.fromEntries(Object.entries(value ?? {}).flatMap(([name, one]) => (name.startsWith("**") ? Object.entries(one ?? {}) : [[name, one]])));

function buildNestedField(source, { root, required, name, depth }) {
  const { schema, nullable } = resolveSchema(source, root, 0);
  const field = { kind: "any", label: schema.title ?? name, hint: schema.description ?? "", required, nullable };
  if ("default" in schema) field.initial = schema.default;
  const buildInner = (inner, more) => buildNestedField(inner, { root, depth: depth + 1, required: true, name: "", ...more });
  if ("const" in schema) return { ...field, kind: "choice", choices: [schema.const] };
  if (Array.isArray(schema.enum)) return { ...field, kind: "choice", choices: schema.enum.filter((one) => !(nullable && one === null)) };
  if (depth > MAX_DEPTH) return { ...field, kind: "json" };
  if (schema.anyOf || schema.oneOf || schema.allOf || Array.isArray(schema.type)) return { ...field, kind: "json" };
  switch (schema.type) {
    case "string":
      return { ...field, kind: "text", format: schema.format ?? "", min: schema.minLength ?? 0, max: schema.maxLength ?? null,
        isLong: !schema.format && (schema.maxLength ?? Infinity) > LONG_TEXT_LENGTH };
    case "integer":
    case "number":
      return { ...field, kind: "number", isInteger: schema.type === "integer", min: schema.minimum, max: schema.maximum, exclusiveMin: schema.exclusiveMinimum, exclusiveMax: schema.exclusiveMaximum };
    case "boolean":
      return { ...field, kind: "boolean", isOpen: nullable || (!required && !("default" in schema)) };
    case "array": {
      if (!schema.items || schema.prefixItems) return { ...field, kind: "json" };
      const item = buildInner(schema.items);
      if (item.kind === "list") return { ...field, kind: "json" };
      return { ...field, kind: "list", item, min: schema.minItems ?? 0, max: schema.maxItems ?? null };
    }
    case "object": {
      if (!schema.properties || !Object.keys(schema.properties).length) return { ...field, kind: "json" };
      const requiredNames = new Set(schema.required ?? []);
      const fields = Object.entries(schema.properties).map(([key, inner]) => [key, buildInner(inner, { required: requiredNames.has(key), name: key })]);
      return { ...field, kind: "object", fields, optional: depth > 0 && (nullable || !required) };
    }
    default:
      return Object.keys(schema).some((key) => !ANNOTATION_KEYS.has(key)) ? { ...field, kind: "json" } : field;
  }
}

const ANNOTATION_KEYS = new Set(["title", "description", "default", "examples", "$defs", "$schema", "deprecated"]);

// The schema with its references resolved, and without "or null", which is returned separately.
function resolveSchema(source, root, hops) {
  let schema = source === true || source === null || typeof source !== "object" ? {} : source;
  if (hops > 20) return { schema: { anyOf: [] }, nullable: false };
  if (typeof schema.$ref === "string") {
    const { $ref, ...others } = schema;
    const target = $ref.startsWith("#/") ? $ref.slice(2).split("/").reduce((at, step) => at?.[unescapePointer(step)], root) : $ref === "#" ? root : undefined;
    const inner = resolveSchema(target ?? { anyOf: [] }, root, hops + 1);
    return { schema: { ...inner.schema, ...others }, nullable: inner.nullable };
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1) {
    const { allOf, ...others } = schema;
    const inner = resolveSchema(allOf[0], root, hops + 1);
    return { schema: { ...inner.schema, ...others }, nullable: inner.nullable };
  }
  const keyword = schema.anyOf ? "anyOf" : schema.oneOf ? "oneOf" : null;
  if (keyword) {
    const { [keyword]: alternatives, ...others } = schema;
    const real = alternatives.filter((one) => one?.type !== "null");
    const nullable = real.length < alternatives.length;
    if (real.length === 1) {
      const inner = resolveSchema(real[0], root, hops + 1);
      return { schema: { ...inner.schema, ...others }, nullable: nullable || inner.nullable };
    }
    return { schema, nullable };
  }
  if (Array.isArray(schema.type)) {
    const real = schema.type.filter((one) => one !== "null");
    if (real.length === 1) return { schema: { ...schema, type: real[0] }, nullable: real.length < schema.type.length };
  }
  return { schema, nullable: Array.isArray(schema.enum) && schema.enum.includes(null) };
}

const unescapePointer = (step) => decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");

// The initial draft of a field: from a value, its default, or nothing.
export function buildDraft(field, value = field.initial) {
  switch (field.kind) {
    case "text":
      return typeof value === "string" ? value : "";
    case "number":
      return typeof value === "number" ? String(value) : "";
    case "boolean":
      return typeof value === "boolean" ? value : field.isOpen ? null : false;
    case "choice": {
      const index = field.choices.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
      return index >= 0 ? String(index) : field.required && !field.nullable && field.choices.length === 1 ? "0" : "";
    }
    case "list":
      return Array.isArray(value) ? value.map((one) => buildDraft(field.item, one)) : Array.from({ length: field.min }, () => buildDraft(field.item));
    case "object": {
      const isGiven = isObject(value);
      const fields = Object.fromEntries(field.fields.map(([name, inner]) => [name, isGiven && name in value ? buildDraft(inner, value[name]) : buildDraft(inner)]));
      return { isIncluded: !field.optional || isGiven, fields };
    }
    case "any":
      return value === undefined ? "" : typeof value === "string" && !isJson(value) ? value : JSON.stringify(value);
    default:
      return value === undefined || (value === null && !field.required) ? "" : JSON.stringify(value, null, 2);
  }
}

// { value, violations: [{ path, message }] }: the value of a draft; `undefined` if it was left out. A path is that of the
// field: ["lines", 0, "amount"].
export function readDraft(field, draft) {
  const violations = [];
  const value = readField(field, draft, [], violations);
  return { value: violations.length ? undefined : value, violations };
}

function readField(field, draft, path, violations) {
  const addViolation = (message) => {
    violations.push({ path, message });
    return undefined;
  };
  const readEmpty = (message) => (field.nullable ? (field.required || field.initial !== undefined ? null : undefined) : field.required ? addViolation(message) : undefined);
  switch (field.kind) {
    case "text": {
      // A required text may be empty, unless its schema says otherwise.
      if (draft === "" && (field.nullable || (!field.required && field.initial === undefined))) return readEmpty("");
      if (draft === "" && (field.min > 0 || field.format)) return addViolation("Something must stand here.");
      const length = [...draft].length;
      if (length < field.min) return addViolation(`At least ${field.min} characters; there are ${length}.`);
      if (field.max !== null && length > field.max) return addViolation(`At most ${field.max} characters; there are ${length}.`);
      return draft;
    }
    case "number": {
      const text = draft.trim();
      if (!text) return readEmpty("A number must stand here.");
      const number = Number(text);
      if (!/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) || !Number.isFinite(number)) return addViolation("That is no number.");
      if (field.isInteger && !Number.isInteger(number)) return addViolation("A whole number must stand here.");
      if (Number.isInteger(number) && !Number.isSafeInteger(number)) return addViolation("It is too large: a browser would round it. Send it by the command line or the API.");
      if (field.min !== undefined && number < field.min) return addViolation(`At least ${field.min}.`);
      if (field.max !== undefined && number > field.max) return addViolation(`At most ${field.max}.`);
      if (field.exclusiveMin !== undefined && number <= field.exclusiveMin) return addViolation(`More than ${field.exclusiveMin}.`);
      if (field.exclusiveMax !== undefined && number >= field.exclusiveMax) return addViolation(`Less than ${field.exclusiveMax}.`);
      return number;
    }
    case "boolean":
      return draft === null ? readEmpty("Yes or no?") : draft;
    case "choice":
      return draft === "" ? readEmpty("Choose one.") : field.choices[Number(draft)];
    case "list": {
      if (!draft.length && !field.required && field.initial === undefined) return undefined;
      const values = draft.map((one, index) => readField(field.item, one, [...path, index], violations));
      if (values.length < field.min) return addViolation(`At least ${field.min}; there are ${values.length}.`);
      if (field.max !== null && values.length > field.max) return addViolation(`At most ${field.max}; there are ${values.length}.`);
      return values;
    }
    case "object": {
      if (!draft.isIncluded) return readEmpty("");
      const entries = field.fields.map(([name, inner]) => [name, readField(inner, draft.fields[name], [...path, name], violations)]);
      return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
    }
    case "any":
      return draft === "" ? readEmpty("Something must stand here.") : isJson(draft) ? JSON.parse(draft) : draft;
    default:
      if (!draft.trim()) return readEmpty("A value must stand here, as JSON.");
      try {
        return JSON.parse(draft);
      } catch (error) {
        return addViolation(`That is no JSON: ${error.message}`);
      }
  }
}

export const findViolationMessage = (violations, path) => violations.find((one) => one.path.length === path.length && one.path.every((step, index) => step === path[index]))?.message ?? "";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
