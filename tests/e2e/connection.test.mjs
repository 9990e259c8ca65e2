// The daemon goes away under an open page and comes back: the page says so, and goes on by itself.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, Browser, leave, picture } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";

let daemon;
let browser;
before(async () => {
  daemon = await Daemon.start();
  browser = await Browser.open();
});
after(async () => {
  await browser?.close();
  await daemon.close();
});

test("a killed daemon is missed, and found again", async () => {
  const id = await daemon.submit("long.step-ms=20", { steps: 100000 });
  await daemon.inState(id, "running");
  const page = await browser.page(daemon.url, { colorScheme: "light" });
  await page.getByText("connected", { exact: true }).waitFor();
  const step = async () => {
    const text = await page.getByText(/^step [\d,]+ of/).innerText();
    return Number(text.match(/^step ([\d,]+)/)[1].replace(/,/g, ""));
  };
  const before = await step();
  await daemon.end("SIGKILL");
  await page.getByText("the daemon does not answer").waitFor();
  await page.getByText(/trying again in \d+ s/).waitFor();
  await accessible(page);
  await picture(page, "lost-light");
  assert.ok((await step()) >= before, "what was known stays");
  await daemon.restart();
  await page.getByText("connected", { exact: true }).waitFor();
  const known = (await daemon.job(id)).step;
  await until("the page is up to date", async () => (await step()) >= known);
  await leave(page);
});

test("a page that nobody sees asks for nothing", async () => {
  const page = await browser.page(daemon.url);
  await page.getByText("connected", { exact: true }).waitFor();
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { value: true, configurable: true });
  });
  await page.waitForTimeout(7000); // longer than any pause between two looks
  let asked = 0;
  page.on("request", () => asked++);
  await page.waitForTimeout(7000);
  assert.equal(asked, 0);
  await page.evaluate(() => {
    delete document.hidden;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await until("it asks again", () => asked > 0);
  await leave(page);
});
