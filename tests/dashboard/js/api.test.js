import assert from "node:assert/strict";
import test from "node:test";
import { get, getPages, isKeyRejected, apiKey, post } from "../../../src/holdfast/server/dashboard/site/js/api.js";

const stored = new Map();
globalThis.sessionStorage = { getItem: (name) => stored.get(name) ?? null, setItem: (name, value) => stored.set(name, value), removeItem: (name) => stored.delete(name) };

const respondWith = (status, body = {}) => {
  globalThis.fetch = async () => new Response(JSON.stringify(body), { status });
};

test("a question that nobody heard is asked again, and a wish may have been heard all the same", async () => {
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  await assert.rejects(get("/v1/runs"), /It is asked again/);
  await assert.rejects(post("/v1/runs/a/cancel"), /look whether it was done/);
});

test("a key is refused by a 401 alone, and taken again by an answer", async () => {
  respondWith(401);
  await assert.rejects(get("/v1/whoami"));
  assert.equal(isKeyRejected(), true);
  for (const status of [429, 503]) {
    respondWith(status);
    await assert.rejects(get("/v1/whoami"));
    assert.equal(isKeyRejected(), true, `${status} says nothing of the key`);
  }
  respondWith(200);
  await get("/v1/whoami");
  assert.equal(isKeyRejected(), false);
});

test("an answer to a key that is not used any more says nothing about the one that is", async () => {
  let answer;
  globalThis.fetch = () => new Promise((done) => (answer = done));
  const late = get("/v1/keys");
  apiKey.set("hf_new");
  answer(new Response("{}", { status: 401 }));
  await assert.rejects(late);
  assert.equal(isKeyRejected(), false);
});

test("pages are read one behind the other, and no more of them than there are", async () => {
  const paths = [];
  globalThis.fetch = async (path) => {
    paths.push(path);
    return new Response(JSON.stringify(path.includes("cursor=2") ? { items: [3], next: null } : { items: [1, 2], next: "2" }));
  };
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 1), { items: [1, 2], next: "2" });
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 9), { items: [1, 2, 3], next: null });
  assert.deepEqual(paths, ["/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2&cursor=2"]);
});
