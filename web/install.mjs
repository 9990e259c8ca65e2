// Installs what a package-lock.json names into the build directory, never into the source tree.
// usage: node install.mjs SOURCE-DIRECTORY DIRECTORY STAMP
//
// npm takes from its cache what it has; without that it needs the registry that it is set up for.
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [source, directory, stamp] = process.argv.slice(2);
mkdirSync(directory, { recursive: true });
for (const name of ["package.json", "package-lock.json", ".npmrc"])
  copyFileSync(join(source, name), join(directory, name));

const args = ["ci", "--ignore-scripts", "--prefer-offline", "--loglevel=error"];
const npm = spawnSync("npm", args, { cwd: directory, encoding: "utf8" });
if (npm.status !== 0) {
  const said = npm.error?.message ?? `${npm.stdout}${npm.stderr}`.trim();
  console.error(`${source}: npm could not install what package-lock.json names:\n${said}`);
  console.error("To build without it: meson configure -Dweb=disabled");
  process.exit(1);
}
writeFileSync(stamp, "");
