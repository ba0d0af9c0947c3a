import assert from "node:assert/strict";
import test from "node:test";
import { apiKey, get, getPages, isKeyRejected, post } from "../../../src/holdfast/server/dashboard/site/js/api.js";

const stored = new Map();
globalThis.sessionStorage = { getItem: (name) => stored.get(name) ?? null, setItem: (name, value) => stored.set(name, value), removeItem: (name) => stored.delete(name) };

const respondWith = (status, body = {}) => {
  globalThis.fetch = async () => new Response(JSON.stringify(body), { status });
};

test("a read without a response is sent again, and a change without a response may have been made", async () => {
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  await assert.rejects(get("/v1/runs"), /It is asked again/);
  await assert.rejects(post("/v1/runs/a/cancel"), /look whether it was done/);
});

test("only a 401 rejects a key, and a success accepts it again", async () => {
  respondWith(401);
  await assert.rejects(get("/v1/whoami"));
  assert.equal(isKeyRejected(), true);
  for (const status of [429, 503]) {
    respondWith(status);
    await assert.rejects(get("/v1/whoami"));
    assert.equal(isKeyRejected(), true, `${status} says nothing about the key`);
  }
  respondWith(200);
  await get("/v1/whoami");
  assert.equal(isKeyRejected(), false);
});

test("a response to an old key says nothing about the current one", async () => {
  let answer;
  globalThis.fetch = () => new Promise((done) => (answer = done));
  const late = get("/v1/keys");
  apiKey.set("hf_new");
  answer(new Response("{}", { status: 401 }));
  await assert.rejects(late);
  assert.equal(isKeyRejected(), false);
});

test("pages are read one after the other, and no more of them than there are", async () => {
  const paths = [];
  globalThis.fetch = async (path) => {
    paths.push(path);
    return new Response(JSON.stringify(path.includes("cursor=2") ? { items: [3], next: null } : { items: [1, 2], next: "2" }));
  };
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 1), { items: [1, 2], next: "2" });
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 9), { items: [1, 2, 3], next: null });
  assert.deepEqual(paths, ["/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2&cursor=2"]);
});
