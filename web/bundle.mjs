// Bundles the dashboard and writes it as a C file that is compiled into dllmd (page.h).
// usage: node bundle.mjs SOURCE-DIRECTORY MODULES-DIRECTORY OUTPUT.c DEPFILE
//
// Assets carry a hash of their content in their name, so a browser may keep them for ever; the
// index, which names them, is asked for each time. Each file is there plain and gzip-compressed.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";

const [source, modules, output, depfile] = process.argv.slice(2);
const esbuild = createRequire(join(resolve(modules), "package.json"))("esbuild");

const types = {
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
  html: "text/html; charset=utf-8",
};

async function bundle() {
  const built = await esbuild.build({
    absWorkingDir: resolve(source),
    entryPoints: { dllmd: "src/main.jsx", icon: "src/icon.svg" },
    outdir: "assets",
    entryNames: "[name]-[hash]",
    loader: { ".svg": "copy" },
    nodePaths: [join(resolve(modules), "node_modules")],
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: true,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    metafile: true,
    write: false,
    logLevel: "warning",
  });
  const files = built.outputFiles.map((file) => ({
    path: `/assets/${file.path.split("/").pop()}`,
    content: Buffer.from(file.contents),
  }));
  return { files, inputs: Object.keys(built.metafile.inputs).map((path) => resolve(source, path)) };
}

// The index names the assets as {dllmd.js}.
function index(files) {
  const template = readFileSync(join(source, "index.html"), "utf8");
  const html = template.replace(/\{(\w+)\.(\w+)\}/g, (_, name, extension) => {
    const found = files.find(({ path }) => path.match(`^/assets/${name}-[^.]*\\.${extension}$`));
    if (!found) throw new Error(`index.html: there is no asset ${name}.${extension}`);
    return found.path;
  });
  return { path: "/", content: Buffer.from(html) };
}

function bytes(name, content) {
  const lines = [];
  for (let at = 0; at < content.length; at += 32)
    lines.push([...content.subarray(at, at + 32)].join(","));
  return `static const unsigned char ${name}[] = {\n${lines.join(",\n")}};\n`;
}

function program(files) {
  const rows = files.map(({ path, content }, i) => {
    const extension = path === "/" ? "html" : path.split(".").pop();
    const hash = createHash("sha256").update(content).digest("hex").slice(0, 32);
    return `    {"${path}", "${types[extension]}", "${hash}", plain_${i}, gzip_${i}, sizeof plain_${i}, sizeof gzip_${i}},\n`;
  });
  const data = files.map(({ content }, i) =>
    bytes(`plain_${i}`, content) + bytes(`gzip_${i}`, gzipSync(content, { level: 9 })));
  return `#include "web/page.h"\n\n${data.join("")}\nconst struct page_file page_files[] = {\n${rows.join("")}};
const size_t page_files_count = sizeof page_files / sizeof page_files[0];\n`;
}

try {
  const { files, inputs } = await bundle();
  writeFileSync(output, program([index(files), ...files]));
  const needs = [...inputs, resolve(source, "index.html")].map((path) => path.replace(/ /g, "\\ "));
  writeFileSync(depfile, `${output}: ${needs.join(" ")}\n`);
} catch (error) {
  if (!error.errors) console.error(error.message); // esbuild has said its own
  process.exit(1);
}
