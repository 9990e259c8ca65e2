// What of the page is pure: event streams, bounded curves, numbers for people.
import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../../web/src/lib/eventparser.js";
import * as format from "../../web/src/lib/format.js";
import { Series } from "../../web/src/lib/series.js";

function parse(...parts) {
  const events = [];
  const parser = new EventParser((event) => events.push(event));
  for (const part of parts) parser.feed(part);
  return { events, parser };
}

test("an event stream in any pieces is the same events", () => {
  const text = 'retry: 2000\n\nid: 7\nevent: state\ndata: {"a":1}\n\n:\n\nid: 8\nevent: rewind\ndata: {\ndata: }\n\n';
  const whole = parse(text);
  assert.deepEqual(whole.events, [
    { id: "7", type: "state", data: '{"a":1}' },
    { id: "8", type: "rewind", data: "{\n}" },
  ]);
  assert.equal(whole.parser.retry_s, 2);
  for (let cut = 0; cut <= text.length; cut++)
    assert.deepEqual(parse(text.slice(0, cut), text.slice(cut)).events, whole.events, `cut at ${cut}`);
  assert.deepEqual(parse(...text).events, whole.events);
  assert.deepEqual(parse(text.replaceAll("\n", "\r\n")).events, whole.events);
});

test("half an event is none", () => {
  assert.deepEqual(parse("id: 1\nevent: state\ndata: {}\n").events, []);
});

test("a curve takes what is new, and gives back what was rewound", () => {
  const series = new Series();
  assert.equal(series.last, -1);
  series.extend({ steps: [1, 2, 3], values: [3, 2, "nan"] });
  series.extend({ steps: [2, 3, 4], values: [9, 9, 1] });
  assert.deepEqual(series.steps, [1, 2, 3, 4]);
  assert.deepEqual(series.values, [3, 2, NaN, 1]);
  series.rewind(2);
  assert.deepEqual(series.steps, [1, 2]);
  series.extend({ steps: [3], values: [1.5] });
  assert.deepEqual(series.values, [3, 2, 1.5]);
});

test("a curve has a bound, keeps its peaks, and real points only", () => {
  const series = new Series(100);
  const value = (step) => (step === 5003 ? 100 : step === 7777 ? -100 : Math.sin(step / 50));
  for (let step = 0; step < 10000; step++) {
    series.extend({ steps: [step], values: [value(step)] });
    assert.ok(series.steps.length <= 100);
  }
  assert.ok(series.steps.length > 40);
  assert.ok(series.values.includes(100) && series.values.includes(-100));
  series.steps.forEach((step, i) => {
    assert.equal(series.values[i], value(step));
    assert.ok(i === 0 || step > series.steps[i - 1]);
  });
  assert.equal(series.last, 9999);
});

test("numbers, with their units", () => {
  assert.equal(format.count(1234567), "1,234,567");
  assert.equal(format.number(2.34567), "2.346");
  assert.equal(format.number("nan"), "nan");
  assert.equal(format.small(0.00012), "1.20e-4");
  assert.equal(format.compact(12345), "12.3K");
  assert.equal(format.bytes(1536), "1.50 KiB");
  assert.equal(format.bytes(900), "900 B");
  assert.equal(format.percent(999, 1000), "99%");
  for (const [s, text] of [
    [0.25, "250 ms"],
    [1.25, "1.3 s"],
    [9.99, "10 s"],
    [59.6, "1 min"],
    [125, "2 min 5 s"],
    [7260, "2 h 1 min"],
    [90000, "1 d 1 h"],
  ])
    assert.equal(format.duration(s), text);
  for (const print of [format.count, format.number, format.bytes, format.duration, format.ago, format.when])
    assert.equal(print(null), "–");
  assert.equal(format.ago("2025-01-01T00:00:00Z", Date.UTC(2025, 0, 1, 2, 3)), "2 h ago");
});
