// A headless Chromium, and what every page in it is held to: no error in its console, nothing
// against its policy, no request to another host, and nothing that axe finds serious.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.E2E_MODULES, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

export class Browser {
  static async open() {
    const browser = new Browser();
    browser.chromium = await chromium.launch({
      executablePath: process.env.CHROMIUM,
      args: ["--no-sandbox", "--no-proxy-server"], // root has no sandbox
    });
    return browser;
  }

  // A page of a fresh profile. options: Playwright's of a context, such as viewport, colorScheme
  async page(url, options = {}) {
    const context = await this.chromium.newContext({
      viewport: DESKTOP,
      locale: "en-GB",
      timezoneId: "UTC",
      reducedMotion: "reduce",
      ...options,
    });
    const page = await context.newPage();
    page.errors = [];
    const { host } = new URL(url);
    page.on("pageerror", (error) => page.errors.push(String(error)));
    page.on("console", (message) => {
      // A refused or unanswered request is logged by the browser; the page has to say it itself.
      const expected = message.text().startsWith("Failed to load resource");
      if (message.type() === "error" && !expected) page.errors.push(message.text());
    });
    page.on("request", (request) => {
      const target = new URL(request.url());
      if (target.protocol.startsWith("http") && target.host !== host)
        page.errors.push(`a request to ${target.host}`);
    });
    await page.goto(url);
    return page;
  }

  async close() {
    await this.chromium.close();
  }
}

// The end of a page: nothing went wrong in it.
export async function leave(page) {
  assert.deepEqual(page.errors, []);
  await page.context().close();
}

// What axe finds serious or critical. It is evaluated apart from the page's policy.
export async function accessible(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document));
  const serious = violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, help, nodes }) => ({ id, help, at: nodes.map(({ target, failureSummary }) => `${target}: ${failureSummary}`) }));
  assert.deepEqual(serious, []);
}

// No page is wider than its window.
export async function fits(page) {
  const [content, view] = await page.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.ok(content <= view, `the page is ${content} px wide in a window of ${view} px`);
}

// A picture of the page in the build directory, for README and docs (screenshots) and for the eye.
export async function picture(page, name, options = {}) {
  mkdirSync(process.env.E2E_PICTURES, { recursive: true });
  await page.screenshot({ path: join(process.env.E2E_PICTURES, `${name}.png`), ...options });
}
