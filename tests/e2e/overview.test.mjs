// The overview against a real run: what it says, that it follows, that it can be used.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, Browser, DESKTOP, fits, leave, PHONE, picture } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";

const LOOKS = {
  light: { viewport: DESKTOP, colorScheme: "light" },
  dark: { viewport: DESKTOP, colorScheme: "dark" },
  "phone-light": { viewport: PHONE, colorScheme: "light" },
  "phone-dark": { viewport: PHONE, colorScheme: "dark" },
};

let daemon;
let browser;
before(async () => {
  daemon = await Daemon.start({ worker: "real" });
  browser = await Browser.open();
});
after(async () => {
  await browser?.close();
  await daemon.close();
});

const section = (page, title) => page.getByRole("region", { name: title });
const row = (page, title, name) => section(page, title).getByRole("listitem").filter({ hasText: name });

test("without a job it says how to submit one", async () => {
  const page = await browser.page(daemon.url, LOOKS.light);
  await page.getByRole("heading", { name: "There is no job yet" }).waitFor();
  await page.getByText(`curl -sS --json @job.json ${daemon.url}/v1/jobs`).waitFor();
  await page.getByText("0 of 4 in use, 4 free").waitFor();
  await accessible(page);
  await leave(page);
});

test("the job.json that it shows is one that the daemon takes", async () => {
  const page = await browser.page(daemon.url);
  const spec = JSON.parse(await page.getByLabel("job.json").innerText());
  spec.data.path = daemon.data;
  const { plan } = await daemon.ask("POST", "/v1/jobs?dry_run=true", spec);
  assert.equal(plan.fits, true);
  await leave(page);
});

test("what runs, waits and failed, in every look", async () => {
  const failed = await daemon.submit("too-fast", { steps: 50, optimizer: { lr: 1e30, max_grad_norm: 0 } });
  await daemon.inState(failed, "failed");
  const done = await daemon.submit("short", { steps: 30 });
  await daemon.inState(done, "succeeded");
  const running = await daemon.submit("fox", { steps: 100000, checkpoint: { every: 0 } });
  await daemon.inState(running, "running");
  await daemon.submit("wide", { parallel: { mode: "csbp", degree: 4 } });
  await daemon.submit("patient");
  await until("it trains", async () => (await daemon.job(running)).step > 60);

  for (const [name, look] of Object.entries(LOOKS)) {
    const page = await browser.page(daemon.url, look);
    const fox = row(page, /^Running/, "fox");
    await fox.getByText("running", { exact: true }).waitFor();
    await fox.getByText(/^[\d.]+ nats\/token$/).waitFor();
    await fox.getByText(/^[\d.]+[KM]? tokens\/s$/).waitFor();
    await fox.getByText(/^step [\d,]+ of 100,000/).waitFor();
    await fox.getByRole("img", { name: "Loss of fox over its steps" }).waitFor();
    assert.match(await fox.locator("dt:has-text('Time left') + dd").innerText(), /^\d/);
    await row(page, /^Waiting/, "wide").getByText("Needs 4 CPU slots; 2 of 4 are free").waitFor();
    await row(page, /^Waiting/, "patient").getByText("Waits behind wide").waitFor();
    const { reason } = await daemon.job(failed);
    await row(page, "Failed lately", "too-fast").getByText(reason).waitFor();
    await page.getByText("2 of 4 in use, 2 free").waitFor();
    await page.getByText(`dllmd 0.`).waitFor();
    await section(page, "All jobs").getByText("succeeded").last().waitFor();
    await fits(page);
    await accessible(page);
    await picture(page, `overview-${name}`, { fullPage: true });
    await leave(page);
  }
});

test("it follows: steps grow, states change, without a reload", async () => {
  const page = await browser.page(daemon.url);
  const step = async () => {
    const text = await row(page, /^Running/, "fox").getByText(/^step [\d,]+ of/).innerText();
    return Number(text.match(/[\d,]+/)[0].replace(/,/g, ""));
  };
  const first = await step();
  await until("the steps grow", async () => (await step()) > first);
  await daemon.ask("POST", "/v1/nodes/1/drain");
  await page.getByText("draining: takes no new work").waitFor();
  await row(page, /^Waiting/, "wide").getByText("The node is draining").waitFor();
  await daemon.ask("POST", "/v1/nodes/1/drain", { draining: false });
  await page.getByText("takes work", { exact: true }).waitFor();
  const { jobs } = await daemon.get("/v1/jobs?state=running,queued,preparing,starting");
  for (const { id } of jobs) await daemon.ask("POST", `/v1/jobs/${id}/cancel`);
  await section(page, "Running (0)").getByText("Nothing runs.").waitFor();
  await section(page, "All jobs").getByRole("row", { name: /fox/ }).getByText("cancelled", { exact: true }).waitFor();
  await leave(page);
});

test("all jobs, by state and by name; the choice is in the address", async () => {
  const page = await browser.page(daemon.url);
  const names = () => section(page, "All jobs").getByRole("link").allInnerTexts();
  await until("all are there", async () => (await names()).length === 5);
  await page.getByLabel("State").selectOption("failed");
  await until("one state is left", async () => (await names()).join() === "too-fast");
  await page.reload();
  await until("it is so after a reload", async () => (await names()).join() === "too-fast");
  await page.getByLabel("State").selectOption("");
  await page.getByLabel("Name, exactly").fill("short");
  await page.getByLabel("Name, exactly").press("Enter");
  await until("one name is left", async () => (await names()).join() === "short");
  await page.getByLabel("Name, exactly").fill("nobody");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText("No job is like that.").waitFor();
  await leave(page);
});

test("by keyboard: the skip link first, the theme's switch, a heading on arrival", async () => {
  const page = await browser.page(daemon.url, LOOKS.light);
  await section(page, "All jobs").waitFor();
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "MAIN");
  assert.equal(new URL(page.url()).hash, "");
  await page.keyboard.press("Tab");
  assert.ok(await page.evaluate(() => document.querySelector("main").contains(document.activeElement)));

  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Theme: auto" }).press("Enter");
  await page.getByRole("button", { name: "Theme: light" }).press("Enter");
  await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  assert.notEqual(await background(), light);
  await page.reload();
  await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  assert.notEqual(await background(), light);

  await page.goto(`${daemon.url}/#/nowhere`);
  await page.getByRole("heading", { name: "There is no such page" }).waitFor();
  await until("the heading has the focus", async () => (await focused()) === "There is no such page");
  assert.match(await page.title(), /^There is no such page/);
  await leave(page);
});
