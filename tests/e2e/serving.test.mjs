// How dllmd serves the page: small, compressed, kept where it may be, and under a strict policy.
import assert from "node:assert/strict";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { gunzipSync } from "node:zlib";
import { Daemon } from "./daemon.mjs";

const MOST_BYTES = 150_000;
let daemon;
before(async () => (daemon = await Daemon.start()));
after(() => daemon.close());

// fetch() would decompress by itself
function ask(path, headers = {}, method = "GET") {
  return new Promise((resolve, reject) => {
    const asked = request(daemon.url + path, { method, headers }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () =>
        resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts) }),
      );
    });
    asked.on("error", reject);
    asked.end();
  });
}

const zipped = { "Accept-Encoding": "gzip, deflate, br" };

async function assets() {
  const { body } = await ask("/");
  return [...body.toString().matchAll(/(?:src|href)="(\/assets\/[^"]+)"/g)].map(([, path]) => path);
}

test("all of it, compressed, is small", async () => {
  let bytes = 0;
  for (const path of ["/", ...(await assets())]) {
    const { headers, body } = await ask(path, zipped);
    assert.equal(headers["content-encoding"], "gzip", path);
    bytes += body.length;
  }
  assert.ok(bytes < MOST_BYTES, `${bytes} bytes`);
});

test("a client that takes no gzip gets the same content", async () => {
  for (const path of ["/", ...(await assets())]) {
    const plain = await ask(path);
    const packed = await ask(path, zipped);
    assert.equal(plain.headers["content-encoding"], undefined);
    assert.equal(plain.headers.vary, "Accept-Encoding");
    assert.deepEqual(gunzipSync(packed.body), plain.body);
    assert.notEqual(plain.headers.etag, packed.headers.etag);
    const refusing = await ask(path, { "Accept-Encoding": "gzip;q=0, identity" });
    assert.equal(refusing.headers["content-encoding"], undefined);
  }
});

test("the index is asked for again, the assets are kept", async () => {
  const index = await ask("/", zipped);
  assert.equal(index.headers["cache-control"], "no-cache");
  assert.equal(index.headers["content-type"], "text/html; charset=utf-8");
  const [script] = (await assets()).filter((path) => path.endsWith(".js"));
  const asset = await ask(script, zipped);
  assert.match(asset.headers["cache-control"], /immutable/);
  assert.match(asset.headers["content-type"], /^text\/javascript/);
  for (const [path, { headers }] of [["/", index], [script, asset]]) {
    const again = await ask(path, { ...zipped, "If-None-Match": headers.etag });
    assert.equal(again.status, 304);
    assert.equal(again.headers.etag, headers.etag);
    assert.equal(again.body.length, 0);
  }
});

test("nothing inline may run, nothing elsewhere may be asked, nobody may frame it", async () => {
  for (const path of ["/", ...(await assets())]) {
    const { headers, body } = await ask(path);
    const policy = headers["content-security-policy"];
    assert.match(policy, /default-src 'none'/);
    assert.match(policy, /frame-ancestors 'none'/);
    assert.doesNotMatch(policy, /unsafe|\*|https?:/);
    assert.equal(headers["x-content-type-options"], "nosniff");
    assert.equal(headers["referrer-policy"], "no-referrer");
    const away = body.toString().match(/https?:\/\/(?!www\.w3\.org\/)[\w.-]+/g) ?? [];
    assert.deepEqual(away, [], path);
  }
  const { body } = await ask("/");
  assert.doesNotMatch(body.toString(), /<style|style=|<script(?![^>]* src=)| on\w+=/);
});

test("HEAD, other methods, and what is not there", async () => {
  const [asset] = await assets();
  for (const path of ["/", asset]) {
    const whole = await ask(path);
    const head = await ask(path, {}, "HEAD");
    assert.equal(head.status, 200);
    assert.equal(head.headers["content-length"], String(whole.body.length));
    const posted = await ask(path, {}, "POST");
    assert.equal(posted.status, 405);
    assert.match(posted.headers.allow, /GET/);
  }
  for (const path of ["/assets/", "/assets/none.js", `${asset}x`, "/index.html"])
    assert.equal((await ask(path)).status, 404, path);
});
