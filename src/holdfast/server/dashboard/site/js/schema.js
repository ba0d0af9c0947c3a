// What a JSON schema asks for, as fields that a person can fill in, and what was filled in, as a value. Pure: tests run
// it without a browser; `forms.js` shows it.
//
// A *field* says how something is asked for. A *draft* is what stands in it while somebody types, which need not be a
// value yet: texts for texts and numbers, the number of the choice, a list of drafts, an object of drafts.
//   { kind, label, hint, required, nullable, ... }
//     text     { long, format: "date" | "date-time" | "time" | "email" | "", least, most }
//              A pattern is checked by the server alone: in a browser it could take for ever.
//     number   { whole, least, most, above, below }
//     boolean  { open }: it may be left open
//     choice   { choices: values }
//     list     { item: field, least, most }
//     object   { fields: [[name, field]], optional }
//     json     what no field fits is written as JSON
//     any      any value: JSON, or else a text

const DEEPEST = 6; // a type that holds itself would never end
const LONG = 200;

export function fieldOf(schema, { required = true, name = "" } = {}) {
  return plan(schema, { root: schema, required, name, depth: 0 });
}

// A field for any value, which is written as JSON.
export const jsonField = (label) => ({ kind: "json", label, hint: "", required: true, nullable: false });

// Fields for parameters of which only the names are known.
export const fieldsOfNames = (names) => ({
  kind: "object", label: "", hint: "", required: true, nullable: false, optional: false,
  fields: names.map((name) => [name, { kind: "any", label: name, hint: "", required: false, nullable: false }]),
});

// Fields for the inputs of a workflow, by the JSON schema that its workers announce. A text that must be there must not be
// empty: here it was forgotten. What may be a text or something else need not be written as JSON. `*args` has no name to
// be sent by.
export function fieldsOfInputs(schema) {
  const named = Object.entries(schema.properties ?? {}).filter(([name]) => !/^\*[^*]/.test(name));
  const needed = new Set(schema.required ?? []);
  const fields = named.map(([name, inner]) => {
    const field = plan({ ...inner, title: name }, { root: schema, required: needed.has(name), name, depth: 1 });
    const ways = inner.anyOf ?? inner.oneOf ?? [];
    if (field.kind === "json" && ways.some((one) => resolved(one, schema, 0).schema.type === "string")) return [name, { ...field, kind: "any" }];
    return [name, field.kind === "text" && field.required && !field.nullable ? { ...field, least: Math.max(1, field.least) } : field];
  });
  return { kind: "object", label: "", hint: "", required: true, nullable: false, optional: false, fields };
}

// Inputs as they are sent: those of `**kwargs` by their own names.
export const sentInputs = (value) =>
  Object.fromEntries(Object.entries(value ?? {}).flatMap(([name, one]) => (name.startsWith("**") ? Object.entries(one ?? {}) : [[name, one]])));

function plan(given, { root, required, name, depth }) {
  const { schema, nullable } = resolved(given, root, 0);
  const field = { kind: "any", label: schema.title ?? name, hint: schema.description ?? "", required, nullable };
  if ("default" in schema) field.initial = schema.default;
  const below = (inner, more) => plan(inner, { root, depth: depth + 1, required: true, name: "", ...more });
  if ("const" in schema) return { ...field, kind: "choice", choices: [schema.const] };
  if (Array.isArray(schema.enum)) return { ...field, kind: "choice", choices: schema.enum.filter((one) => !(nullable && one === null)) };
  if (depth > DEEPEST) return { ...field, kind: "json" };
  if (schema.anyOf || schema.oneOf || schema.allOf || Array.isArray(schema.type)) return { ...field, kind: "json" };
  switch (schema.type) {
    case "string":
      return { ...field, kind: "text", format: schema.format ?? "", least: schema.minLength ?? 0, most: schema.maxLength ?? null,
        long: !schema.format && (schema.maxLength ?? Infinity) > LONG };
    case "integer":
    case "number":
      return { ...field, kind: "number", whole: schema.type === "integer", least: schema.minimum, most: schema.maximum, above: schema.exclusiveMinimum, below: schema.exclusiveMaximum };
    case "boolean":
      return { ...field, kind: "boolean", open: nullable || (!required && !("default" in schema)) };
    case "array": {
      if (!schema.items || schema.prefixItems) return { ...field, kind: "json" };
      const item = below(schema.items);
      if (item.kind === "list") return { ...field, kind: "json" };
      return { ...field, kind: "list", item, least: schema.minItems ?? 0, most: schema.maxItems ?? null };
    }
    case "object": {
      if (!schema.properties || !Object.keys(schema.properties).length) return { ...field, kind: "json" };
      const needed = new Set(schema.required ?? []);
      const fields = Object.entries(schema.properties).map(([key, inner]) => [key, below(inner, { required: needed.has(key), name: key })]);
      return { ...field, kind: "object", fields, optional: depth > 0 && (nullable || !required) };
    }
    default:
      return Object.keys(schema).some((key) => !NO_TYPE.has(key)) ? { ...field, kind: "json" } : field;
  }
}

const NO_TYPE = new Set(["title", "description", "default", "examples", "$defs", "$schema", "deprecated"]);

// The schema behind references, and without "or null", which is told apart.
function resolved(given, root, hops) {
  let schema = given === true || given === null || typeof given !== "object" ? {} : given;
  if (hops > 20) return { schema: { anyOf: [] }, nullable: false };
  if (typeof schema.$ref === "string") {
    const { $ref, ...beside } = schema;
    const target = $ref.startsWith("#/") ? $ref.slice(2).split("/").reduce((at, step) => at?.[unescaped(step)], root) : $ref === "#" ? root : undefined;
    const inner = resolved(target ?? { anyOf: [] }, root, hops + 1);
    return { schema: { ...inner.schema, ...beside }, nullable: inner.nullable };
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1) {
    const { allOf, ...beside } = schema;
    const inner = resolved(allOf[0], root, hops + 1);
    return { schema: { ...inner.schema, ...beside }, nullable: inner.nullable };
  }
  const word = schema.anyOf ? "anyOf" : schema.oneOf ? "oneOf" : null;
  if (word) {
    const { [word]: ways, ...beside } = schema;
    const real = ways.filter((one) => one?.type !== "null");
    const nullable = real.length < ways.length;
    if (real.length === 1) {
      const inner = resolved(real[0], root, hops + 1);
      return { schema: { ...inner.schema, ...beside }, nullable: nullable || inner.nullable };
    }
    return { schema, nullable };
  }
  if (Array.isArray(schema.type)) {
    const real = schema.type.filter((one) => one !== "null");
    if (real.length === 1) return { schema: { ...schema, type: real[0] }, nullable: real.length < schema.type.length };
  }
  return { schema, nullable: Array.isArray(schema.enum) && schema.enum.includes(null) };
}

const unescaped = (step) => decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");

// What stands in a field at first: a value, its default, or nothing.
export function draftOf(field, value = field.initial) {
  switch (field.kind) {
    case "text":
      return typeof value === "string" ? value : "";
    case "number":
      return typeof value === "number" ? String(value) : "";
    case "boolean":
      return typeof value === "boolean" ? value : field.open ? null : false;
    case "choice": {
      const at = field.choices.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
      return at >= 0 ? String(at) : field.required && !field.nullable && field.choices.length === 1 ? "0" : "";
    }
    case "list":
      return Array.isArray(value) ? value.map((one) => draftOf(field.item, one)) : Array.from({ length: field.least }, () => draftOf(field.item));
    case "object": {
      const given = isObject(value);
      const fields = Object.fromEntries(field.fields.map(([name, inner]) => [name, given && name in value ? draftOf(inner, value[name]) : draftOf(inner)]));
      return { given: !field.optional || given, fields };
    }
    case "any":
      return value === undefined ? "" : typeof value === "string" && !isJson(value) ? value : JSON.stringify(value);
    default:
      return value === undefined || (value === null && !field.required) ? "" : JSON.stringify(value, null, 2);
  }
}

// { value, faults: [{ path, message }] }: what was filled in; `undefined` is what was left out. A path is that of the
// field: ["lines", 0, "amount"].
export function read(field, draft) {
  const faults = [];
  const value = taken(field, draft, [], faults);
  return { value: faults.length ? undefined : value, faults };
}

function taken(field, draft, path, faults) {
  const fault = (message) => {
    faults.push({ path, message });
    return undefined;
  };
  const nothing = (words) => (field.nullable ? (field.required || field.initial !== undefined ? null : undefined) : field.required ? fault(words) : undefined);
  switch (field.kind) {
    case "text": {
      // A text that must be there may be empty, unless its schema says otherwise.
      if (draft === "" && (field.nullable || (!field.required && field.initial === undefined))) return nothing("");
      if (draft === "" && (field.least > 0 || field.format)) return fault("Something must stand here.");
      const length = [...draft].length;
      if (length < field.least) return fault(`At least ${field.least} characters; there are ${length}.`);
      if (field.most !== null && length > field.most) return fault(`At most ${field.most} characters; there are ${length}.`);
      return draft;
    }
    case "number": {
      const text = draft.trim();
      if (!text) return nothing("A number must stand here.");
      const number = Number(text);
      if (!/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) || !Number.isFinite(number)) return fault("That is no number.");
      if (field.whole && !Number.isInteger(number)) return fault("A whole number must stand here.");
      if (Number.isInteger(number) && !Number.isSafeInteger(number)) return fault("It is too large: a browser would round it. Send it by the command line or the API.");
      if (field.least !== undefined && number < field.least) return fault(`At least ${field.least}.`);
      if (field.most !== undefined && number > field.most) return fault(`At most ${field.most}.`);
      if (field.above !== undefined && number <= field.above) return fault(`More than ${field.above}.`);
      if (field.below !== undefined && number >= field.below) return fault(`Less than ${field.below}.`);
      return number;
    }
    case "boolean":
      return draft === null ? nothing("Yes or no?") : draft;
    case "choice":
      return draft === "" ? nothing("Choose one.") : field.choices[Number(draft)];
    case "list": {
      if (!draft.length && !field.required && field.initial === undefined) return undefined;
      const values = draft.map((one, index) => taken(field.item, one, [...path, index], faults));
      if (values.length < field.least) return fault(`At least ${field.least}; there are ${values.length}.`);
      if (field.most !== null && values.length > field.most) return fault(`At most ${field.most}; there are ${values.length}.`);
      return values;
    }
    case "object": {
      if (!draft.given) return nothing("");
      const entries = field.fields.map(([name, inner]) => [name, taken(inner, draft.fields[name], [...path, name], faults)]);
      return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
    }
    case "any":
      return draft === "" ? nothing("Something must stand here.") : isJson(draft) ? JSON.parse(draft) : draft;
    default:
      if (!draft.trim()) return nothing("A value must stand here, as JSON.");
      try {
        return JSON.parse(draft);
      } catch (error) {
        return fault(`That is no JSON: ${error.message}`);
      }
  }
}

export const faultAt = (faults, path) => faults.find((one) => one.path.length === path.length && one.path.every((step, index) => step === path[index]))?.message ?? "";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
