// A daemon that asks for tokens: the page asks for one, keeps it as it was told to, and says what a
// role may not do.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { accessible, Browser, fits, leave, PHONE, picture } from "./browser.mjs";
import { Daemon } from "./daemon.mjs";

let daemon;
let browser;
const tokens = {};
before(async () => {
  daemon = await Daemon.start({ settings: { auth: true } });
  const admin = execFileSync(process.env.DLLMD, [...daemon.flags(), "--create-admin-token"], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  daemon.token = admin.trim();
  for (const role of ["read", "submit", "agent"])
    tokens[role] = (await daemon.ask("POST", "/v1/tokens", { name: role, role })).token;
  browser = await Browser.open();
});
after(async () => {
  await browser?.close();
  await daemon.close();
});

async function signIn(page, token, { remember = false } = {}) {
  await page.getByLabel("Token").fill(token);
  if (remember) await page.getByLabel(/Remember/).check();
  await page.getByLabel("Token").press("Enter");
}

const kept = (page) =>
  page.evaluate(() => [sessionStorage.getItem("dllmd-token"), localStorage.getItem("dllmd-token")]);

test("a token is asked for, a wrong one refused with the reason, a right one kept in the tab", async () => {
  const page = await browser.page(daemon.url, { colorScheme: "light" });
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await page.getByText("This needs a token").waitFor();
  await accessible(page);
  await picture(page, "signin-light");
  await signIn(page, "dllmd_wrong");
  await page.getByRole("alert").getByText("This token is none, has expired, or was revoked.").waitFor();
  await signIn(page, tokens.agent);
  await page.getByRole("alert").getByText("has the role agent").waitFor();
  assert.deepEqual(await kept(page), [null, null]);
  await signIn(page, tokens.read);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.getByText("There is no job yet").waitFor();
  assert.deepEqual(await kept(page), [tokens.read, null]);
  await page.reload();
  await page.getByText("There is no job yet").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  assert.deepEqual(await kept(page), [null, null]);
  await leave(page);
});

test("remembered, a token is there in the next tab", async () => {
  const page = await browser.page(daemon.url, { viewport: PHONE, colorScheme: "dark" });
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await accessible(page);
  await fits(page);
  await picture(page, "signin-phone-dark");
  await signIn(page, tokens.read, { remember: true });
  await page.getByText("There is no job yet").waitFor();
  assert.deepEqual(await kept(page), [null, tokens.read]);
  const other = await page.context().newPage();
  await other.goto(daemon.url);
  await other.getByText("There is no job yet").waitFor();
  await leave(page);
});

test("a token that is revoked under an open page is asked for anew", async () => {
  const made = await daemon.ask("POST", "/v1/tokens", { name: "short", role: "read" });
  const page = await browser.page(daemon.url);
  await signIn(page, made.token);
  await page.getByText("There is no job yet").waitFor();
  await daemon.ask("DELETE", `/v1/tokens/${made.id}`);
  await page.getByText("This token is none, has expired, or was revoked.").waitFor();
  await signIn(page, tokens.submit);
  await page.getByText("There is no job yet").waitFor();
  await leave(page);
});
